"""Presets that are named on the command line."""

import json
import pathlib

import processes
import pytest
from absl import flags

from experiments.flags import presets

FOLDER = processes.ROOT / "experiments" / "presets"
FILE = FOLDER / "capsnet" / "digits.cfg"


@pytest.mark.parametrize(
  "words", [["--preset=digits"], ["-preset=digits"], ["--preset", "digits"]]
)
def test_a_name_stands_for_its_flagfile_before_other_flags(words):
  """So they replace those of the preset, wherever it is named."""
  expanded = presets.expand(["a/train_capsnet.py", "--seed=1", *words, "x"])
  assert expanded == [
    "a/train_capsnet.py", f"--flagfile={FILE}", "--seed=1", "x"
  ]  # fmt: skip
  path = expanded[1].partition("=")[2]
  assert presets.portable(path) == "experiments/presets/capsnet/digits.cfg"


@pytest.mark.parametrize("path", ["my.cfg", "presets/capsnet/digits.cfg"])
def test_other_flagfiles_are_recorded_as_given(path):
  assert presets.portable(path) == path


def test_a_preset_of_another_binary_is_refused():
  with pytest.raises(flags.IllegalFlagValueError, match="give one of .*scae"):
    presets.expand(["train_scae", "--preset=digits"])


@pytest.mark.parametrize(
  "path", sorted(FOLDER.glob("*/*.cfg")), ids=lambda path: path.stem
)
def test_presets_are_read_from_any_folder(tmp_path, monkeypatch, path):
  """Presets name others by their paths from the root of the project."""
  monkeypatch.chdir(tmp_path)
  words = ["train_scae", f"--flagfile={path}", "--seed=1"]
  first, *flags_of_preset, last = presets.inlined(words)
  assert (first, last) == ("train_scae", "--seed=1") and flags_of_preset
  assert not [x for x in flags_of_preset if x.lstrip("-").startswith("flagf")]
  assert all(x.startswith("--") for x in flags_of_preset)


def test_a_preset_begins_with_the_flags_of_that_which_it_names():
  path = FOLDER / "scae" / "scae_mnist_40_cpu.cfg"
  below = FOLDER / "scae" / "scae_mnist_cpu.cfg"
  inner, own = (presets.inlined([f"--flagfile={x}"]) for x in (below, path))
  assert own[: len(inner)] == inner and own[len(inner) :] == [
    "--canvas=40", "--num_steps=20000", "--log_every=500", "--eval_every=5000"
  ]  # fmt: skip


def test_a_recorded_command_finds_its_preset(tmp_path, monkeypatch):
  recorded = "--flagfile=experiments/presets/capsnet/digits.cfg"
  want = presets.inlined([f"--flagfile={FILE}"])
  monkeypatch.chdir(tmp_path)
  assert presets.inlined([recorded]) == want
  # A file of the user goes before, and is read by absl.
  own = tmp_path / "experiments" / "presets" / "capsnet" / "digits.cfg"
  own.parent.mkdir(parents=True)
  own.write_text("--seed=3\n")
  assert presets.inlined([recorded, "--flagfile=a.cfg", "x"]) == [
    recorded, "--flagfile=a.cfg", "x"
  ]  # fmt: skip


def test_commands_without_presets_say_so():
  assert presets.has_some("train_scae.py")
  assert not presets.has_some("evaluate.py")
  assert not presets.has_some("experiments/benchmarks/capsnet.py")
  with pytest.raises(flags.IllegalFlagValueError, match="has no presets"):
    presets.expand(["evaluate.py", "--preset=digits"])


@pytest.mark.parametrize(
  ("binary", "name"),
  [("train_vae.py", "vae_quick"), ("capjax train_capsnet", "digits")],
)
def test_a_command_that_names_nothing_gets_the_quick_preset(binary, name):
  words = [
    binary, "--workdir", "runs/x", "--seed=1", "--nodeterministic",
    "--cpu_devices=1", "--nodistributed",
  ]  # fmt: skip
  first, flagfile, *rest = presets.expand(words)
  assert (first, rest) == (binary, words[1:])
  assert pathlib.Path(flagfile.partition("=")[2]).stem == name


def _run(
  folder, lines, flags, *, experiment="train_vae", preset=None, updates=True
):
  """Writes the files of a run, as far as a command line is read from them."""
  (folder / "flags.cfg").write_text("".join(f"{x}\n" for x in lines))
  record = {"experiment": experiment, "flags": flags, "preset": preset}
  (folder / "provenance.json").write_text(json.dumps(record))
  if updates:
    (folder / "metrics.jsonl").write_text('{"step": 1, "split": "train"}\n')


_LINES = ["--dataset=x.npz", "--compilation_cache=/c", "--workdir=/old"]
_FLAGS = {"dataset": "x.npz", "seed": None}


@pytest.mark.parametrize("form", [["--workdir={}"], ["--workdir", "{}"]])
def test_a_command_that_names_nothing_takes_the_flags_of_the_run(
  tmp_path, form
):
  _run(tmp_path, _LINES, _FLAGS)
  given = [x.format(tmp_path) for x in form] + ["--num_steps=9"]
  found = presets.expand(["train_vae.py", *given])
  assert found == ["train_vae.py", _LINES[0], *given]
  other = [*given, "--dataset=digits"]
  assert presets.expand(["train_vae.py", *other]) == ["train_vae.py", *other]
  _run(tmp_path, [*_LINES, "--compilation_cache="], _FLAGS)
  found = presets.expand(["train_vae.py", *given])
  assert found[1:3] == [_LINES[0], "--compilation_cache="]


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("preset", ["vae_mnist", "vae_quick", None])
def test_a_run_without_an_update_begins_again(tmp_path, updates, preset):
  _run(tmp_path, _LINES, _FLAGS, preset=preset, updates=updates)
  found = presets.expand(["train_vae.py", f"--workdir={tmp_path}"])
  again = preset == "vae_quick" and not updates
  assert found[1].endswith("vae_quick.cfg") == again
  assert (_LINES[0] in found) != again


def test_a_run_of_a_preset_resumes_with_it_and_what_differs(tmp_path):
  of_preset = presets.inlined(
    ["--flagfile=experiments/presets/vae/vae_mnist.cfg"]
  )
  names = [x.lstrip("-").partition("=")[0] for x in of_preset]
  own = "--dataset=x.npz"
  lines = [x for x in of_preset if not x.startswith("--dataset=")] + [own]
  flags = dict.fromkeys(names, "given")
  _run(tmp_path, lines, flags, preset="vae_mnist")
  found = presets.expand(["train_vae.py", f"--workdir={tmp_path}"])
  assert found[1].endswith("vae/vae_mnist.cfg")
  assert found[2:] == [own, f"--workdir={tmp_path}"]
  # A preset that has set more flags since.
  found = presets.expand(["train_vae.py", f"--workdir={tmp_path}"])
  fewer = {name: x for name, x in flags.items() if name != names[1]}
  _run(
    tmp_path, [x for x in lines if not x.startswith(f"--{names[1]}")], fewer,
    preset="vae_mnist",
  )  # fmt: skip
  again = presets.expand(["train_vae.py", f"--workdir={tmp_path}"])
  assert not again[1].endswith(".cfg") and found[1].endswith(".cfg")
  # A preset that is no longer there.
  _run(tmp_path, lines, flags, preset="former")
  found = presets.expand(["train_vae.py", f"--workdir={tmp_path}"])
  assert found[1:] == [*lines, f"--workdir={tmp_path}"]


@pytest.mark.parametrize(
  "flag", ["--stream", "--nostream", "--model_parallel=1"]
)
def test_flags_that_are_not_recorded_resume_a_run(tmp_path, flag):
  _run(tmp_path, _LINES, _FLAGS)
  found = presets.expand(["train_vae.py", f"--workdir={tmp_path}", flag])
  assert found[1] == _LINES[0]


@pytest.mark.parametrize("name", ["train_capsnet", "train_scae", "train_vae"])
def test_a_command_without_words_gets_the_quick_preset(name):
  (binary, preset) = presets.expand([f"{name}.py"])
  assert binary == f"{name}.py" and preset.startswith("--flagfile=")


def test_flags_newer_than_the_run_are_those_of_its_code(tmp_path):
  lines, flags = ["--model=capsnet"], {"model": "capsnet"}
  _run(tmp_path, lines, flags, experiment="train_capsnet")
  word = f"--workdir={tmp_path}"
  found = presets.expand(["train_capsnet.py", word])
  assert found[1:] == [*lines, "--primary_scale=1.0", word]


@pytest.mark.parametrize(
  ("lines", "options"),
  [
    (_LINES, {"experiment": "train_scae"}),
    (_LINES, {"updates": False, "preset": "vae_quick"}),
    (_LINES[1:], {}),  # a line was lost
    (["--dataset=x.npz", "\0"], {}),
    ([], {}),
  ],
)
def test_flags_of_no_such_run_are_not_taken(tmp_path, lines, options):
  _run(tmp_path, lines, _FLAGS, **options)
  found = presets.expand(["train_vae.py", f"--workdir={tmp_path}"])
  assert found[1].endswith("vae_quick.cfg")
  (tmp_path / "flags.cfg").write_bytes(b"--dataset=x.npz\n--seed")
  assert presets.expand(["train_vae.py", f"--workdir={tmp_path}"]) == found
  (tmp_path / "flags.cfg").write_bytes(b"\xff\n")
  assert presets.expand(["train_vae.py", f"--workdir={tmp_path}"]) == found


@pytest.mark.parametrize(
  "words",
  [
    ["train_vae.py", "--num_latents=3"], ["train_vae.py", "--dataset=mnist"],
    ["train_vae.py", "--flagfile=x"], ["evaluate.py", "--workdir=x"],
    ["benchmarks/scae.py"], ["benchmarks/scae.py", "--workdir=x"],
  ],
)  # fmt: skip
def test_other_commands_stay_as_they_are(words):
  assert presets.expand(words) == words


def test_every_training_binary_has_a_quick_preset():
  binaries = [x.stem for x in FILE.parents[2].glob("train_*.py")]
  folders = {f"train_{x.name}" for x in FILE.parents[1].iterdir()}
  assert binaries and set(binaries) == folders
  for binary in binaries:
    words = presets.expand([f"{binary}.py", "--workdir=x"])
    lines = pathlib.Path(words[1].partition("=")[2]).read_text().splitlines()
    given = [line for line in lines if line.startswith("--dataset=")]
    # All of them are embedded.
    assert given == ["--dataset=digits"] or binary == "train_constellation"


def test_every_preset_has_a_name_of_its_own():
  found = sorted(x.stem for x in FILE.parents[1].rglob("*.cfg"))
  assert len(found) > 40 and len(set(found)) == len(found)
  for path in FILE.parents[1].rglob("*.cfg"):
    binary = pathlib.Path(f"train_{path.parent.name}")
    word = presets.expand([str(binary), f"--preset={path.stem}"])[1]
    assert word == f"--flagfile={path}"


@pytest.mark.parametrize(
  "path", sorted(FOLDER.glob("*/*.cfg")), ids=lambda path: path.stem
)
def test_a_preset_says_first_what_to_expect(path):
  header = " ".join(path.read_text().splitlines()[:4])
  assert any(word in header for word in ("Expected:", "Published:", "GPU"))
