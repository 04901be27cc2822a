"""The commands of the README and of the site can be given as printed."""

import json
import re
import shlex
import subprocess

import processes
import pytest

ROOT = processes.ROOT
_PAGES = [
  ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "WORKSPACE.md",
  ROOT / "explorer/README.md",
  *sorted(ROOT.glob("docs/**/*.md")),
]  # fmt: skip
_BLOCK = re.compile(r"```(?:sh|bash|console)\n(.*?)```", re.DOTALL)


def _commands():
  """The words of each command, without settings of the environment."""
  for page in _PAGES:
    for block in _BLOCK.findall(page.read_text()):
      for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
          del words[0]
        if words:
          yield page.name, words


def _binary(words):
  """The binary of `experiments` that a command runs, and its flags."""
  if words[1:2] == ["-m"] and words[2].startswith("experiments."):
    return words[2].removeprefix("experiments."), words[3:]
  if words[0].endswith("capjax"):
    if words[1] == "train":
      return f"train_{words[2]}", words[3:]
    return words[1], words[2:]
  return None, words


COMMANDS = list(_commands())


def test_commands_are_found():
  assert len(COMMANDS) > 40
  first = {words[0] for _, words in COMMANDS}
  assert {"make", ".venv/bin/python", ".venv/bin/capjax"} <= first


def test_targets_and_files_that_are_named_exist():
  makefile = (ROOT / "Makefile").read_text()
  recipes = (ROOT / "results/records.mk").read_text()
  listed = subprocess.run(
    ["make", "-s", "list-records"],
    cwd=ROOT, capture_output=True, text=True, check=True,
  ).stdout  # fmt: skip
  records = {f"record-{x.partition(':')[0]}" for x in listed.splitlines()}
  for page, words in COMMANDS:
    if words[0] == "make":
      for word in words[1:]:
        if word.startswith("-") or "=" in word:
          continue
        if word.startswith("record-"):
          assert word in records, f"{page}: {word}"
        else:
          target = rf"^(?:[\w./-]+ )*{re.escape(word)}(?: [\w./-]+)*:"
          found = re.search(target, makefile + recipes, re.MULTILINE)
          assert found, f"{page}: {word}"
    binary, flags = _binary(words)
    if binary:
      assert (ROOT / f"experiments/{binary}.py").exists(), f"{page}: {binary}"
    for flag in flags:
      if flag.startswith("--flagfile="):
        assert (ROOT / flag.partition("=")[2]).exists(), f"{page}: {flag}"
      elif flag.startswith("--preset="):
        name = flag.partition("=")[2]
        presets = (ROOT / "experiments/presets").glob(f"*/{name}.cfg")
        assert list(presets), f"{page}: {flag}"


def test_the_accuracy_that_is_matched_is_that_of_the_record():
  """Not the number of images that it was measured on."""
  name = "solids_cpu-1"
  path = ROOT / f"results/records/{name}.jsonl"
  record = json.loads(path.read_text().splitlines()[0])
  target = "record-solids_cpu_baseline_matched-1"
  printed = subprocess.run(
    ["make", "-n", "-B", "-o", str(path.relative_to(ROOT)), target],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  (command,) = re.findall(r"--stop_accuracy=\$\((.*?\| head -n 1)\)", printed)
  found = subprocess.run(
    command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True
  )
  want = record["metrics"]["test_familiar_accuracy"]
  assert float(found.stdout) == want


@pytest.mark.long
def test_flags_that_are_named_exist():
  wanted = {}
  for page, words in COMMANDS:
    binary, rest = _binary(words)
    if binary:
      flags = {x.partition("=")[0] for x in rest if x.startswith("--")}
      wanted.setdefault(binary, {}).update(dict.fromkeys(flags, page))
  for binary, flags in wanted.items():
    _, printed = processes.Running(binary, "--help").wait()
    known = set(re.findall(r"^ *(--(?:\[no\])?\w+)", printed, re.MULTILINE))
    for flag, page in flags.items():
      admitted = {flag, flag.replace("--", "--[no]"), f"{flag}="}
      assert admitted & known | {flag} & {"--flagfile"}, (
        f"{page}: {binary} has no {flag}"
      )


@pytest.mark.parametrize(
  "line, binary",
  [
    (".venv/bin/python -m experiments.predict --model=x", "predict"),
    ("capjax train vae --workdir=x", "train_vae"),
    ("make test", None),
  ],
)
def test_binaries_are_told(line, binary):
  assert _binary(line.split())[0] == binary
