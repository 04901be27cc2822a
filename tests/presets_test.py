"""Every preset trains, and its record says how to repeat it."""

import struct

import numpy as np
import processes
import pytest

PRESETS = sorted((processes.ROOT / "experiments" / "presets").glob("*.cfg"))


@pytest.fixture(scope="module")
def few_digits(tmp_path_factory):
  """A folder with 200 noise images of each data set, and 20 to test."""
  folder = tmp_path_factory.mktemp("data")
  pixels = np.random.default_rng(0)
  for split, count in (("train", 200), ("t10k", 20)):
    images = pixels.integers(0, 256, (count, 28, 28), np.uint8)
    labels = np.arange(count, dtype=np.uint8) % 10
    colors = pixels.integers(0, 256, (count, 32, 32, 3), np.uint8)
    for datasets, array in (
      (("mnist", "fashion_mnist"), images),
      (("cifar10", "svhn_cropped"), colors),
    ):
      for dataset in datasets:
        (folder / dataset).mkdir(exist_ok=True)
        _write_idx(folder / dataset / f"{split}-images-idx{array.ndim}", array)
        _write_idx(folder / dataset / f"{split}-labels-idx1", labels)
  for split, count in (("train", 200), ("test", 20)):
    pairs = pixels.integers(0, 256, (count, 96, 96, 2), np.uint8)
    labels = np.arange(count, dtype=np.uint8) % 5
    (folder / "smallnorb").mkdir(exist_ok=True)
    _write_idx(folder / "smallnorb" / f"{split}-images-idx4", pairs)
    _write_idx(folder / "smallnorb" / f"{split}-labels-idx1", labels)
    (folder / "viewpoint_solids").mkdir(exist_ok=True)
    numbers = np.arange(count)
    np.savez(
      folder / "viewpoint_solids" / f"{split}-v1.npz",
      images=pairs[:, ::2, ::2], labels=np.int32(labels),
      label_azimuth=numbers % 18, label_elevation=numbers % 9,
    )  # fmt: skip
  return folder


def _write_idx(path, array):
  header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
  path.with_name(f"{path.name}-ubyte").write_bytes(header + array.tobytes())


def small_run(preset):
  """The binary of a preset, and flags that make its network small."""
  if preset.startswith(("boltzmann", "rbm")):
    return "train_boltzmann", ["--num_capsules=2", "--num_sweeps=1"]
  if preset.startswith("helmholtz"):
    small = ["--num_capsules=2,2", "--num_sweeps=1", "--pretrain_steps=2"]
    return "train_helmholtz", small
  if preset.startswith("generative"):
    small = ["--num_capsules=2,2", "--conv_features=2", "--width=4"]
    return "train_generative", small
  if preset.startswith("constellation"):
    return "train_constellation", ["--width=8", "--blocks=1", "--hidden=8"]
  if preset.startswith("scae"):
    small = ["--num_parts=2", "--num_objects=2", "--encoder_features=2"]
    return "train_scae", small
  if preset.startswith("transforming"):
    return "train_transforming", ["--num_capsules=2"]
  if preset.startswith("vae"):
    return "train_vae", ["--num_latents=2"]
  if preset.startswith(("matrix", "solids", "smallnorb")):
    small = ["--features=2", "--types=1,1,1", "--num_iterations=1"]
    if "baseline" in preset:
      small = ["--cnn_features=2,2", "--cnn_dense=4"]
    return "train_matrix_capsules", small
  overlapping = preset.startswith("multimnist")
  binary = "train_multimnist" if overlapping else "train_capsnet"
  if "baseline" in preset:
    features = "4,4" if overlapping else "4,4,4"
    return binary, [f"--cnn_features={features}", "--cnn_dense=8"]
  if "efficient" in preset:  # its size is fixed
    return binary, []
  return binary, ["--conv_features=4", "--num_types=1", "--decoder_features=8"]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_every_preset_takes_two_steps(train, few_digits, tmp_path, preset):
  header = preset.read_text().splitlines()[:4]
  assert any(
    "Expected:" in x or "Published:" in x or "GPU" in x for x in header
  )
  binary, small = small_run(preset.stem)
  given = f"--flagfile=experiments/presets/{preset.name}"
  # Novel viewpoints leave no choice of what to validate on.
  split = [] if preset.stem.startswith("solids_cpu") else ["num_validation=20"]
  code, printed = train(
    tmp_path, given, *small, "--data_dir", str(few_digits), "--num_steps", "2",
    "--batch_size=8", *(f"-{x}" for x in split), binary=binary,
  )  # fmt: skip
  assert code == 0, printed
  summary = processes.summary_of(tmp_path)
  assert summary["preset"] == preset.stem
  # However flags are written.
  assert summary["command"] == " ".join(
    ["python -m", f"experiments.{binary} --workdir=DIR", given, *small,
     "--num_steps=2 --batch_size=8", *(f"--{x}" for x in split),
     "--data_dir=DATA"]
  )  # fmt: skip
