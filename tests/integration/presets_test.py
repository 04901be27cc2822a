"""Every preset can be trained, and a record says how to repeat it."""

import numpy as np
import processes
import pytest
from dataset_files import write_idx, write_solids

pytestmark = pytest.mark.long
PRESETS = sorted((processes.ROOT / "experiments" / "presets").glob("*/*.cfg"))


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
        for name, values in (
          (f"images-idx{array.ndim}-ubyte", array),
          ("labels-idx1-ubyte", labels),
        ):
          write_idx(folder / dataset / f"{split}-{name}", values)
  for split, count in (("train", 200), ("test", 20)):
    pairs = pixels.integers(0, 256, (count, 96, 96, 2), np.uint8)
    labels = np.arange(count, dtype=np.uint8) % 5
    (folder / "smallnorb").mkdir(exist_ok=True)
    write_idx(folder / "smallnorb" / f"{split}-images-idx4-ubyte", pairs)
    write_idx(folder / "smallnorb" / f"{split}-labels-idx1-ubyte", labels)
  write_solids(folder, train=200, test=20)
  return folder


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_every_preset_can_be_trained(few_digits, preset):
  code, printed = processes.Running(
    "tracing", f"train_{preset.parent.name}", f"--flagfile={preset}",
    f"--data_dir={few_digits}", package="",
  ).wait()  # fmt: skip
  assert code == 0 and printed.endswith("lowered\n"), printed


@pytest.mark.parametrize(
  ("preset", "small"),
  [
    ("capsnet/mnist_paper", ("--conv_features=4", "--num_types=1",
                     "--decoder_features=8")),
    ("boltzmann/rbm_mnist", ("--num_capsules=2", "--num_sweeps=1")),
    ("matrix_capsules/solids_paper", ("--features=2", "--types=1,1,1",
                                      "--num_iterations=1")),
    # Of colours, explained by their edges.
    ("scae/scae_svhn", ("--num_parts=2", "--num_objects=2",
                        "--encoder_features=2")),
  ],
)  # fmt: skip
def test_record_says_how_to_repeat_a_preset(
  train, few_digits, tmp_path, preset, small
):
  folder, stem = preset.split("/")
  binary = f"train_{folder}"
  given = f"--flagfile=experiments/presets/{preset}.cfg"
  code, printed = train(
    tmp_path, given, *small, "--data_dir", str(few_digits), "--num_steps", "2",
    "--batch_size=8", "-num_validation=20", binary=binary,
  )  # fmt: skip
  assert code == 0, printed
  summary = processes.summary_of(tmp_path)
  assert summary["preset"] == stem
  # However flags are written.
  assert summary["command"] == " ".join(
    ["python -m", f"experiments.{binary} --workdir=DIR", given, *small,
     "--num_steps=2 --batch_size=8 --num_validation=20 --data_dir=DATA"]
  )  # fmt: skip
