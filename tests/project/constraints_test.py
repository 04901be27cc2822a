"""The versions known to work are admitted by setup.cfg, and cover all of it."""

import configparser
import pathlib
import re

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parents[2]


def _pinned() -> dict[str, str]:
  lines = (ROOT / "constraints.txt").read_text().splitlines()
  return dict(line.split("==") for line in lines if not line.startswith("#"))


def _required() -> list[Requirement]:
  config = configparser.ConfigParser()
  config.read(ROOT / "setup.cfg")
  extras = config["options.extras_require"]
  texts = [config["options"]["install_requires"]]
  texts += [extras[name] for name in ("train", "data", "dev")]
  return [Requirement(x) for text in texts for x in text.split("\n") if x]


@pytest.mark.parametrize("requirement", _required(), ids=lambda x: x.name)
def test_every_requirement_has_a_version_that_it_admits(requirement):
  name = re.sub(r"[-_.]+", "-", requirement.name).lower()
  version = _pinned()[name]
  assert requirement.specifier.contains(version), f"{requirement}: {version}"


def test_names_are_normal_and_sorted():
  names = list(_pinned())
  assert names == sorted(names) == [re.sub(r"[-_.]+", "-", x) for x in names]
