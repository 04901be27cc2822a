"""The comparison of a guide with chains, and scales, where they are known."""

from types import SimpleNamespace

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from capjax.kernels.matching import selection
from flax import nnx

from capjax import data
from experiments.evaluation import generative
from experiments.training import train_step


def _layers(random, shape, scales=(0.1, 0.3)):
  """Poses A1 and A2 of x = 0: A2 ~ N(0, 1), A1 ~ N(A2, s), x ~ N(A1, t)."""
  total = scales[0] ** 2 + scales[1] ** 2
  deviation = np.sqrt(total / (1 + total))
  upper = deviation * random.normal(size=shape)
  weight = scales[1] ** 2 / total
  spread = np.sqrt(weight) * scales[0]
  return weight * upper + spread * random.normal(size=shape), upper


def test_an_exact_guide_agrees_with_chains_in_all_layers():
  """Also above, where poses of the layer below are random themselves."""
  random = np.random.default_rng(0)
  chains = _layers(random, (2, 2, 500, 3, 6))
  guided = _layers(random, (2, 1000, 3, 6))
  present = np.ones((2, 3), bool)
  for one, other in zip(chains, guided, strict=True):
    found = generative.agreement(one, other, present)
    assert found["deviation_ratio"] == pytest.approx(1, abs=0.05)
    assert found["shift"] < 0.1 and found["mixing"] < 1.02


def test_a_guide_that_is_off_and_chains_that_differ():
  """Its means three deviations off, and twice as wide."""
  random = np.random.default_rng(0)
  chains, guided = (random.normal(size=(1, n, 2000, 3, 6)) for n in (2, 1))
  present = np.ones((1, 3), bool)
  found = generative.agreement(chains, 2 * guided[:, 0] + 3, present)
  np.testing.assert_allclose(
    [found["deviation_ratio"], found["shift"]], [2, 3], rtol=0.05
  )
  assert 0.99 < found["mixing"] < 1.02
  chains[:, 1] += 5
  assert generative.agreement(chains, guided[:, 0], present)["mixing"] > 1.5


def test_only_present_capsules_are_compared():
  random = np.random.default_rng(0)
  chains, _ = _layers(random, (2, 2, 500, 3, 6))
  guided, _ = _layers(random, (2, 1000, 3, 6))
  guided[:, :, 1:] = 5 * guided[:, :, 1:] + 1
  present = np.array([[True, False, False]] * 2)
  found = generative.agreement(chains, guided, present)
  assert found["deviation_ratio"] == pytest.approx(1, abs=0.05)
  found = generative.agreement(chains, guided, ~present)
  assert found["deviation_ratio"] == pytest.approx(5, abs=0.3)
  assert found["shift"] > 1
  assert generative.agreement(chains, guided, present & ~present) == {}


def test_scales_are_those_of_all_relations(run, monkeypatch):
  for name in ("tiles", "decompositions"):
    monkeypatch.setattr(generative.energy_models, name, lambda *_, **__: None)
  monkeypatch.setattr(generative, "_sample", lambda *_: np.full(2, 0.3))
  monkeypatch.setattr(generative, "_decompose", lambda *_: [])
  scales = [np.array([[0.5, 0.4], [0.2, 0.9]]), np.array([[0.7]])]
  capsules = SimpleNamespace(
    templates=SimpleNamespace(alphas=np.ones((2, 1)), colours=np.ones((2, 1))),
    relations=[lambda x=x: SimpleNamespace(scales=x) for x in scales],
  )
  images = np.array([51, 0, 102], np.uint8).reshape(3, 1, 1, 1)
  test = data.Dataset(images, np.zeros(3, np.int32), 1, {})
  some = golden_cases.classifier(test, SimpleNamespace(capsules=capsules))
  sample = train_step.sample_labelled(lambda key, image: image)
  some = some._replace(task=some.task._replace(sample_test=sample))
  assert generative.parts(run, some) == pytest.approx(
    {
      "samples_mean": 0.3,
      "images_mean": 0.2,
      "num_images": 3,
      "least_scale": 0.2,
      "median_scale": 0.5,
    }
  )


class _Brightnesses(nnx.Module):
  """Pixels of an image are the log odds of its parts, which are bars."""

  @property
  def capsules(self):
    return self

  def guide(self, images):
    logits = images[:, 0, :, 0]
    return None, [selection.Capsules(logits, jnp.zeros((*logits.shape, 6)))]

  def render(self, parts):
    brightness = jnp.arange(1.0, 5.0) * jax.nn.sigmoid(parts.logits)
    return brightness[:, None, :, None]


def test_single_parts_are_shown_from_the_most_present_down():
  logits = np.array([[-1.0, 2.0, 0.5, 3.0], [1.0, 0.0, -2.0, 4.0]])
  images = jnp.float32(logits[:, None, :, None])
  means, parts, presences = generative._decompose(_Brightnesses(), images)
  odds = np.exp(logits) / (1 + np.exp(logits))
  np.testing.assert_allclose(means[:, 0, :, 0], odds * [1, 2, 3, 4], rtol=1e-5)
  for n, order in enumerate([[3, 1, 2, 0], [3, 0, 1, 2]]):
    np.testing.assert_allclose(presences[n], odds[n, order], rtol=1e-5)
    want = np.eye(4)[order] * (odds[n] * [1, 2, 3, 4])
    np.testing.assert_allclose(parts[n, :, 0, :, 0], want, rtol=1e-5)
