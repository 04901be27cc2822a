"""What a run is made of: its model and its data."""

import inspect
import json
import shutil

import cases
import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
import saved_cases
from flax import nnx

import capjax
from capjax import data, saved, specs
from capjax.scae import parts


@pytest.mark.parametrize(
  ("binary", "flags", "path"),
  [
    ("train_capsnet", processes.SMALL, "capsnet.CapsNet"),
    ("train_capsnet", ("--model=baseline", "--cnn_kernels=3,3,3"),
     "baselines.CapsNetBaseline"),
    ("train_capsnet", ("--dataset=mnist", "--model=efficient", "--bfloat16"),
     "efficient_capsnet.EfficientCapsNet"),
    ("train_multimnist", processes.SMALL, "capsnet.CapsNet"),
    ("train_matrix_capsules", ("--dataset=mnist", "--types=2,2,3"),
     "matrix_capsules.MatrixCapsules"),
    ("train_matrix_capsules", ("--dataset=mnist", "--model=baseline"),
     "baselines.smallnorb_baseline"),
    ("train_scae", ("--dataset=mnist", "--num_parts=3"),
     "scae.autoencoder.SCAE"),
    ("train_transforming", ("--max_jitter=1", "--max_shift=1"),
     "transforming.TransformingAutoencoder"),
    ("train_vae", (), "baselines.ConvVAE"),
    ("train_boltzmann", ("--num_capsules=3",), "energy.rbm.CapsuleRBM"),
    ("train_helmholtz", ("--num_capsules=3,2",), "energy.helmholtz.CapsuleHM"),
    ("train_generative", ("--dataset=mnist", "--num_capsules=3,2",
                          "--gaussian_poses"),
     "generative.amortised.amortised_capsules"),
    ("train_constellation", ("--width=8",),
     "scae.constellation.ConstellationAutoencoder"),
  ],
)  # fmt: skip
@pytest.mark.long_after_first
def test_a_model_is_made_again_from_its_record(data_dir, binary, flags, path):
  code, printed = processes.Running(
    "describing", binary, *flags, f"--data_dir={data_dir}", package=""
  ).wait()
  assert code == 0 and printed.endswith(f"same capjax.{path}\n"), printed


def test_misspelt_arguments_are_named():
  arguments = {"image_shape": (8, 8, 1), "num_latent": 3}
  with pytest.raises(TypeError, match="num_latent is .* mean num_latents?"):
    specs.Spec(capjax.baselines.ConvVAE, arguments)
  assert specs.Spec(lambda **given: given, {"any": 1}).arguments == {"any": 1}


def test_classes_show_the_arguments_of_their_constructors():
  for maker in (capjax.CapsNet, capjax.SCAE, capjax.layers.DenseCaps):
    want = list(inspect.signature(maker.__init__).parameters)[1:]
    assert list(inspect.signature(maker).parameters) == want
  model = capjax.CapsNet((17, 17, 1), conv_features=2, rngs=nnx.Rngs(0))
  assert list(inspect.signature(model).parameters) == ["images"]


def test_a_spec_makes_its_model():
  arguments = {"image_shape": (8, 8, 1), "num_latents": 3}
  spec = specs.Spec(capjax.baselines.ConvVAE, arguments)
  again = specs.from_json(json.loads(json.dumps(spec.as_json())))
  assert again.maker is capjax.baselines.ConvVAE
  models = [x.make(nnx.Rngs(4)) for x in (spec, again)]
  for got, want in zip(
    *(nnx.to_flat_state(nnx.state(x)) for x in models), strict=True
  ):
    np.testing.assert_array_equal(got[1][...], want[1][...])


def test_arguments_are_added_replaced_and_have_defaults():
  spec = specs.Spec(capjax.SCAE, {"num_parts": 3, "edges": True})
  changed = spec.with_arguments(image_shape=(8, 8, 1), num_parts=4)
  assert changed.arguments == {
    "image_shape": (8, 8, 1), "num_parts": 4, "edges": True
  }  # fmt: skip
  assert spec.argument("num_parts") == 3
  assert spec.argument("num_objects") == 32
  some = specs.Spec(capjax.baselines.smallnorb_baseline, {})
  assert some.argument("num_classes") == 10
  with pytest.raises(KeyError):
    spec.argument("num_layers")
  with pytest.raises(KeyError):  # it has no default
    specs.Spec(parts.PartEncoder, {}).argument("num_parts")


@pytest.mark.parametrize(
  "path", ["os.system", "capjax.nothing.X", "capjax.capsnet.Nothing", "", None,
           "capjax.capsnet.__doc__"],
)  # fmt: skip
def test_only_models_of_this_package_are_made(path):
  with pytest.raises(ValueError, match="is no model of capjax"):
    specs.from_json({"class": path, "arguments": {}})


@pytest.mark.parametrize(
  ("path", "maker"),
  [
    ("capjax.boltzmann.CapsuleRBM", capjax.CapsuleRBM),
    ("capjax.helmholtz.CapsuleHM", capjax.CapsuleHM),
    ("capjax.layers.attention.SetTransformer", capjax.SetTransformer),
    ("capjax.scae.SCAE", capjax.SCAE),
    ("capjax.constellation.ConstellationAutoencoder",
     capjax.ConstellationAutoencoder),
    ("capjax.generative.GenerativeCapsules", capjax.GenerativeCapsules),
    ("capjax.amortised.amortised_capsules",
     capjax.generative.amortised.amortised_capsules),
  ],
)  # fmt: skip
def test_models_of_older_runs_are_found_where_they_are_now(path, maker):
  assert specs.from_json({"class": path, "arguments": {}}).maker is maker
  assert specs.Spec(maker, {}).as_json()["class"] == specs.current_path(path)


@pytest.mark.parametrize(
  ("path", "arguments"),
  [
    ("capjax.boltzmann.CapsuleRBM",
     {"visible_shape": [4, 4, 1], "num_capsules": 2, "capsule_size": 2}),
    ("capjax.energy.helmholtz.CapsuleHM",
     {"visible_shape": [4, 4, 1], "num_capsules": [2], "capsule_size": 2}),
  ],
)  # fmt: skip
def test_arguments_of_older_runs_have_their_names_of_now(path, arguments):
  record = {"class": path, "arguments": arguments, "num_parameters": 7}
  model = specs.from_json(record).make(nnx.Rngs(0))
  assert model.image_shape == (4, 4, 1)
  now = specs.current(record)
  assert now["class"] == specs.current_path(path)
  assert "visible_shape" not in now["arguments"]
  assert now["arguments"]["image_shape"] == [4, 4, 1]
  assert now["num_parameters"] == 7


def test_records_of_results_make_their_models():
  """Every model that a record of `results` describes, in shapes alone."""
  seen = {}
  for path in sorted(processes.ROOT.glob("results/records/*.jsonl")):
    for line in path.read_text().splitlines():
      model = json.loads(line).get("model")
      if model:
        seen[json.dumps([model["class"], model["arguments"]])] = model
  assert len(seen) > 3
  for model in seen.values():
    shapes = specs.from_json(model).shapes()
    count = cases.num_parameters(shapes)
    assert count == model["num_parameters"], model


def test_a_fingerprint_changes_with_every_part_of_the_data():
  images = np.arange(24, dtype=np.uint8).reshape(3, 2, 4, 1)
  labels = np.arange(3, dtype=np.int32)
  some = data.Dataset(images, labels, 3, {"angle": labels})
  want = data.fingerprint(some)
  assert len(want) == 64
  assert data.fingerprint(some._replace(factors={})) == want
  strided = images[:, ::-1].copy()[:, ::-1]
  assert data.fingerprint(some._replace(images=strided)) == want
  others = [
    some._replace(images=images[::-1]),
    some._replace(images=images.reshape(3, 4, 2, 1)),
    some._replace(labels=labels[::-1]),
    some._replace(labels=labels.astype(np.int64)),
    some._replace(images=images[:2], labels=labels[:2]),
  ]
  assert len({want, *map(data.fingerprint, others)}) == len(others) + 1


def write_digits(folder, change=0):
  """The digits 28x28, as IDX files of MNIST; a few pixels of test changed."""
  folder.mkdir(parents=True)
  for split, name in (("train", "train"), ("test", "t10k")):
    digits = data.load("digits", split)
    images = np.pad(digits.images[:200, :, :, 0], ((0, 0), (10, 10), (10, 10)))
    if split == "test":
      images[0, 0, 0] += change
    labels = digits.labels[:200].astype(np.uint8)
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
      header = bytes([0, 0, 8, array.ndim])
      header += np.array(array.shape, ">i4").tobytes()
      path = folder / f"{name}-{kind}-ubyte"
      path.write_bytes(header + array.tobytes())


@pytest.mark.long
def test_other_data_are_refused_unless_allowed(train, tmp_path):
  run = tmp_path / "run"
  for name, change in (("same", 0), ("other", 1)):
    write_digits(tmp_path / name / "mnist", change)
  flags = (*processes.BASELINE, "--dataset=mnist", "--num_steps=2")
  code, printed = train(run, *flags, f"--data_dir={tmp_path / 'same'}")
  assert code == 0, printed
  summary = processes.summary_of(run)
  for name in ("data", "model"):
    written = json.loads((run / f"{name}.json").read_text())
    assert written.items() >= summary[name].items()
  assert summary["model"]["class"] == "capjax.baselines.CapsNetBaseline"
  assert summary["model"]["num_parameters"] == summary["num_parameters"]
  mnist = data.load("mnist", "test", tmp_path / "same")
  assert summary["data"]["test"] == data.fingerprint(mnist)
  # Where they lie does not matter.
  shutil.move(tmp_path / "same", tmp_path / "moved")
  words = {
    ("moved",): None,
    ("other",): "the data differ from those of the run",
    ("other", "--allow_other_data"): None,
  }
  for (folder, *flag), refusal in words.items():
    code, printed = train(
      run, f"--data_dir={tmp_path / folder}", *flag, binary="evaluate"
    )
    assert code == (1 if refusal else 0), printed
    assert (refusal or "") in printed and "Traceback" not in printed
    if not refusal:
      record = processes.evaluation_of(run)["accuracy"]
      same = record["data"]["test"] == summary["data"]["test"]
      assert same == (folder == "moved")
  assert record["data"]["train"] == summary["data"]["train"]
  # Nor does training resume on them.
  code, printed = train(run, *flags, f"--data_dir={tmp_path / 'other'}")
  assert code == 1
  assert "data.json: the run was started with other data (the test" in printed


def test_shapes_are_kept_and_their_owner_may_change_them():
  spec = saved_cases.SPECS["efficient"]
  first = spec.shapes()
  first.train()
  first.extra = 1
  second = spec.shapes()
  second.eval()
  assert not first.norms[0].use_running_average
  assert second.norms[0].use_running_average
  assert not hasattr(second, "extra")
  wider = spec.with_arguments(num_classes=7).shapes()
  assert cases.num_parameters(wider) > cases.num_parameters(second)


def _of_default_dtype(rngs):
  dtype = jnp.result_type(float)
  return nnx.Linear(2, 3, param_dtype=dtype, rngs=rngs)


def test_shapes_of_float64_are_others():
  spec = specs.Spec(_of_default_dtype, {})
  for wide, want in ((False, jnp.float32), (True, jnp.float64)):
    with jax.enable_x64(wide):
      assert spec.shapes().kernel.dtype == want


def test_numbers_of_numpy_are_plain_in_json():
  spec = specs.Spec(
    capjax.CapsNet,
    {"num_types": np.int64(2), "image_shape": tuple(np.array([12, 12, 1]))},
  )
  described = json.loads(json.dumps(spec.as_json()))
  assert described["arguments"] == {"num_types": 2, "image_shape": [12, 12, 1]}
  card = saved.make_card(
    spec,
    image_shape=(12, 12, 1),
    class_names=("a", "b"),
    accuracy=np.float32(0.5),
  )
  assert card["accuracy"] == 0.5
