"""What each family says about images, and what images it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saved_cases
from scipy import special

from capjax import predictions, saved

OUTPUTS = {
  "capsnet": set(),
  "bfloat16": set(),
  "self_routing": set(),
  "efficient": set(),
  "baseline": set(),
  "matrix": set(),
  "scae": {"objects", "parts"},
  "generative": {"presences_1", "presences_2", "reconstructions"},
  "rbm": {"activities_1", "reconstructions"},
  "plain_rbm": {"activities_1", "reconstructions"},
  "helmholtz": {"activities_1", "activities_2", "reconstructions"},
  "vae": {"latents", "reconstructions"},
  "transforming": {"presences", "poses", "reconstructions"},
}
PROBABILITIES = {"baseline", "scae"}


def predicted(name, count=5, **options):
  shape = saved_cases.image_shape(name)
  images = saved_cases.images(shape, count)
  return images, saved_cases.trained(name).predict(images, **options)


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.long_after_first
def test_outputs_have_their_names_and_ranges(name):
  images, found = predicted(name)
  assert found.outputs.keys() == OUTPUTS[name]
  for output, values in found.outputs.items():
    assert len(values) == 5 and np.all(np.isfinite(values))
    if output not in ("latents", "poses"):
      assert 0 <= values.min() and values.max() <= 1
  if "reconstructions" in found.outputs:
    assert found.outputs["reconstructions"].shape == images.shape
  if found.classes is None:
    assert found.scores is None and found.kind is None
    return
  kind = "probabilities" if name in PROBABILITIES else "activations"
  assert found.kind == kind and found.scores.shape == (5, 3)
  assert np.all((found.scores >= 0) & (found.scores <= 1))
  np.testing.assert_array_equal(found.classes, found.scores.argmax(axis=1))
  if kind == "probabilities":
    np.testing.assert_allclose(found.scores.sum(axis=1), 1, atol=1e-6)


def test_classes_and_objects_of_an_scae_are_those_of_its_posterior():
  images, found = predicted("scae")
  output = saved_cases.trained("scae").model(jnp.float32(images) / 255)
  probabilities = special.softmax(np.float64(output.posterior_logits), axis=1)
  np.testing.assert_allclose(found.scores, probabilities, atol=1e-5)
  np.testing.assert_allclose(
    found.outputs["objects"], output.objects.posterior.mean(-1), atol=1e-5
  )
  np.testing.assert_allclose(
    found.outputs["parts"], output.parts.presence, atol=1e-5
  )


def test_latents_of_a_vae_are_means_which_its_images_come_from():
  images, found = predicted("vae")
  model = saved_cases.trained("vae").model
  mean, _ = model.encode(jnp.float32(images) / 255)
  np.testing.assert_allclose(found.outputs["latents"], mean, atol=1e-5)
  want = special.expit(np.float64(model.decode(mean)))
  np.testing.assert_allclose(found.outputs["reconstructions"], want, atol=1e-5)


@pytest.mark.parametrize("name", ["capsnet", "vae"])
def test_batches_do_not_change_predictions(name):
  _, together = predicted(name)
  _, apart = predicted(name, batch_size=2)
  for got, want in zip(
    jax.tree.leaves(apart._replace(kind=None)),
    jax.tree.leaves(together._replace(kind=None)),
    strict=True,
  ):
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_all_batches_are_compiled_once():
  trained = saved_cases.trained("capsnet")
  images = saved_cases.images((12, 12, 1), 11)
  before = saved._outputs._cache_size()
  trained.predict(images, batch_size=3)
  trained.predict(images, batch_size=3)
  assert saved._outputs._cache_size() - before == 1


def test_images_without_an_axis_of_channels():
  trained = saved_cases.trained("capsnet")
  images = saved_cases.images((12, 12, 1))
  np.testing.assert_array_equal(
    trained.predict(images[..., 0]).scores, trained.predict(images).scores
  )


def test_images_with_two_labels():
  trained = saved_cases.trained("baseline", num_labels=2)
  found = trained.predict(saved_cases.images((12, 12, 1)))
  logits = trained(trained.preprocess(saved_cases.images((12, 12, 1))))
  np.testing.assert_allclose(found.scores, jax.nn.sigmoid(logits), atol=1e-6)
  order = np.argsort(-found.scores, axis=1)
  np.testing.assert_array_equal(found.classes, order[:, :2])


@pytest.mark.parametrize("name", ["capsnet", "baseline"])
def test_images_with_any_number_of_labels(name):
  trained = saved_cases.trained(name, num_labels=None)
  found = trained.predict(saved_cases.images((12, 12, 1)))
  np.testing.assert_array_equal(found.classes, found.scores > 0.5)
  if name == "baseline":
    logits = trained(trained.preprocess(saved_cases.images((12, 12, 1))))
    np.testing.assert_array_equal(found.classes, logits > 0)


@pytest.mark.parametrize(
  ("shape", "dtype", "words"),
  [
    (
      (2, 12, 12, 1),
      np.float32,
      r"hold float32; give uint8 .* \[N 12 12 1\]; convert .*255 \* images",
    ),
    ((2, 12, 12, 1), np.int32, r"hold int32; give uint8 .* \[N 12 12 1\]; con"),
    ((2, 12, 12, 1), bool, r"hold bool; .* convert booleans by np\.uint8\(255"),
    ((2, 12, 12, 3), np.uint8, r"\[2 12 12 3\]; give \[N 12 12 1\]\.$"),
    ((2, 13, 12), np.uint8, r"\[2 13 12\]; give \[N 12 12 1\]\.$"),
    ((2, 1, 12, 12), np.uint8, r"; give .*, such as images.transpose\(0, 2, 3"),
    ((0, 12, 12, 1), np.uint8, r"\[0 12 12 1\]; give at least one"),
    ((12, 12), np.uint8, r"\[12 12\]; give .*as images\[None\]\.$"),
    ((12, 12, 1), np.uint8, r"\[12 12 1\]; give .*as images\[None\]\.$"),
  ],
)
def test_other_images_are_refused(shape, dtype, words):
  trained = saved_cases.trained("capsnet")
  for method in (trained.predict, trained.preprocess):
    with pytest.raises(ValueError, match=words):
      method(np.zeros(shape, dtype))


@pytest.mark.parametrize(
  ("low", "high", "words"),
  [
    (0, 1, r"convert floats in \[0, 1\] by np\.uint8\(np\.round\(255"),
    (0, 255, r"convert numbers in \[0, 255\] by np\.uint8\(np\.round\(im"),
    (-1, 1, r"\[N 12 12 1\]\.$"),
    (0, np.nan, r"\[N 12 12 1\]; some numbers are not finite: leave"),
  ],
)
def test_the_remedy_for_floats_is_that_of_their_range(low, high, words):
  images = np.full((2, 12, 12, 1), low, np.float32)
  images[0, 0, 0, 0] = high
  with pytest.raises(ValueError, match=words):
    saved_cases.trained("capsnet").predict(images)


@pytest.mark.long
def test_points_are_asked_for():
  trained = saved_cases.trained("constellation")
  with pytest.raises(ValueError, match=r"takes points \[N M 2\] .* not images"):
    trained.predict(np.zeros((2, 5, 2), np.float32))
  found = trained(jnp.zeros((2, 5, 2)), jnp.ones((2, 5)))
  assert found.log_prob.shape == (2,)


def test_a_batch_has_images():
  trained = saved_cases.trained("capsnet")
  with pytest.raises(ValueError, match="batch_size is 0; give at least 1"):
    trained.predict(saved_cases.images((12, 12, 1)), batch_size=0)


def test_other_modules_have_no_predictions():
  with pytest.raises(ValueError, match="of a Linear are not defined"):
    predictions.scores_name(
      saved_cases.nnx.Linear(1, 1, rngs=saved_cases.nnx.Rngs(0))
    )


def test_models_with_class_capsules_are_known():
  names = {
    name
    for name, spec in saved_cases.SPECS.items()
    if predictions.has_class_capsules(spec.shapes())
  }
  assert names == {"capsnet", "bfloat16", "self_routing", "efficient", "matrix"}
