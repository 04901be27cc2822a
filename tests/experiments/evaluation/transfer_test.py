"""Attacks made on one model and tried on another."""

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import saved_cases

import capjax
from capjax import data, pretrained, saved
from capjax.data.transforms.preprocessing import Preprocessing
from experiments.evaluation import classifiers, models, transfer


def weights_of(name):
  """The file of a shipped model."""
  return str(next(iter(pretrained.__path__)) + f"/{name}.safetensors")


class Reversed(golden_cases.Brightness):
  """Takes bright images for dark ones."""

  def __call__(self, images):
    return -super().__call__(images)


@pytest.mark.parametrize(
  ("make", "is_same"), [(golden_cases.Brightness, True), (Reversed, False)]
)
def test_attacks_of_another_model_may_miss(run, monkeypatch, make, is_same):
  images = np.full((2, 4, 4, 1), 158, np.uint8)
  test = data.Dataset(images, np.zeros(2, np.int32), 2, {})
  some = golden_cases.classifier(test, golden_cases.Brightness())
  monkeypatch.setattr(classifiers, "_EPSILONS", (0.0, 0.05, 0.2))
  monkeypatch.setattr(
    transfer,
    "source",
    lambda path, shape, test: (some.task.attack_loss, make()),
  )
  options = models.Options(source="other")
  scores = classifiers.attacks(run, some, options)
  assert scores["fgsm_accuracy"] == [1, 1, 0]
  want = [1, 1, 0] if is_same else [1, 1, 1]
  assert scores["transfer_fgsm_accuracy"] == want
  assert scores["transfer_bim_accuracy"] == want
  assert (run.workdir / "figures" / "attacks_transfer.png").exists()


def _test(num_classes):
  """A data set whose classes have numbers as names."""
  images = np.zeros((1, 8, 8, 1), np.uint8)
  return data.Dataset(images, np.zeros(1, np.int32), num_classes, {})


def test_losses_are_those_of_the_other_model():
  losses, model = transfer.source(weights_of("digits"), (8, 8, 1), _test(10))
  images = jax.random.uniform(jax.random.key(0), (3, 8, 8, 1))
  labels = jnp.array([1, 2, 3])
  want = optax.softmax_cross_entropy_with_integer_labels(
    model(images).activations, labels
  )
  got = jax.nn.softplus(losses(model, images, labels))
  np.testing.assert_allclose(got, want, rtol=1e-5)
  assert isinstance(model, capjax.CapsNet)


def test_the_other_model_sees_images_as_in_its_training(tmp_path):
  given = saved_cases.trained("matrix", steps=Preprocessing(standardise=True))
  path = str(tmp_path / "other.safetensors")
  saved.save(given, path)
  shape = saved_cases.image_shape("matrix")
  test = _test(3)._replace(class_names=tuple("abc"))
  losses, other = transfer.source(path, shape, test)
  images = jax.random.uniform(jax.random.key(0), (3, *shape))
  labels = jnp.array([0, 1, 2])
  mean = jnp.mean(images, axis=(1, 2, 3), keepdims=True)
  spread = jnp.std(images, axis=(1, 2, 3), keepdims=True)
  want = optax.softmax_cross_entropy_with_integer_labels(
    given.model((images - mean) / spread).activations, labels
  )
  got = jax.nn.softplus(losses(other, images, labels))
  np.testing.assert_allclose(got, want, rtol=1e-4)


def test_other_models_are_refused():
  with pytest.raises(ValueError, match="8x8x1, for this one as 28x28x1; give"):
    transfer.source(weights_of("digits"), (28, 28, 1), _test(10))
  with pytest.raises(ValueError, match="no scores of classes; give a class"):
    transfer.source(weights_of("boltzmann_mnist"), (28, 28, 1), _test(10))
  with pytest.raises(FileNotFoundError):
    transfer.source("nowhere", (8, 8, 1), _test(10))
  with pytest.raises(ValueError, match="are 0, 1, .*, those of this run 0, 1"):
    transfer.source(weights_of("digits"), (8, 8, 1), _test(3))
