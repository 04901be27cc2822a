"""The README's Python examples run as printed."""

import re

import processes
import pytest

from capjax import data

ROOT = processes.ROOT
README = ROOT / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs_as_printed(number, capsys):
  scope = {}
  exec(compile(EXAMPLES[number], f"README example {number}", "exec"), scope)
  capsys.readouterr()
  if number == 0:
    gradient = scope["gradient"]
    assert gradient.shape == scope["votes"].shape
    assert float(abs(gradient).max()) > 0
  elif "pretrained" in EXAMPLES[number]:
    labels = data.load("digits", "test").labels
    assert scope["kind"] == "activations"
    assert (scope["classes"] == labels).mean() > 0.95
  else:
    assert scope["gradient"]


def test_presets_that_are_named_exist():
  texts = [
    README,
    *ROOT.glob("docs/*.md"),
    *sorted(ROOT.glob("experiments/*.py")),
  ]
  for path in texts:
    for name in re.findall(r"presets/\w+/[\w.]+\.cfg", path.read_text()):
      assert (ROOT / "experiments" / name).exists(), f"{path.name}: {name}"


def test_there_is_an_example_of_a_gradient_through_routing():
  assert any("jax.grad" in e and "routing" in e for e in EXAMPLES)


def test_it_is_short_and_its_links_lead_somewhere():
  text = re.sub(r"<!--.*?-->", "", README.read_text("utf-8"))
  assert len(text.split()) <= 900
  for link in re.findall(r"\]\(([^)#]+)", text):
    assert (ROOT / link).exists(), link
