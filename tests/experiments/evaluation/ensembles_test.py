"""Ensembles of constructed models, whose scores are known."""

from types import SimpleNamespace

import golden_cases
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from capjax import baselines, data
from experiments.evaluation import ensembles, models


class Says(baselines.CapsNetBaseline):
  """Logits that depend on the image's number alone, its first pixel."""

  def __init__(self, logits):
    self.logits = nnx.Variable(jnp.array(logits))

  def __call__(self, images):
    numbers = jnp.round(255 * images[:, 0, 0, 0]).astype(int)
    return self.logits[...][numbers]


OWN = [[1.0, 0.0], [1.0, 0.0], [0.0, 3.0]]
OTHER = np.float32([[0.1, 0.9], [0.4, 0.6], [0.7, 0.3]])


@pytest.fixture
def some():
  images = np.zeros((3, 4, 4, 1), np.uint8)
  images[:, 0, 0, 0] = range(3)
  test = data.Dataset(images, np.int32([1, 0, 1]), 2, {})
  return golden_cases.classifier(test, Says(OWN))


def given(monkeypatch, *, names=("0", "1"), **prediction):
  found = SimpleNamespace(**{"kind": "probabilities", **prediction})
  other = SimpleNamespace(predict=lambda images: found, class_names=list(names))
  monkeypatch.setattr(ensembles.saved, "load", lambda path: other)


def test_scores_are_averaged(run, monkeypatch, some):
  given(monkeypatch, scores=OTHER)
  scores = ensembles.ensemble(run, some, models.Options(ensemble=["other"]))
  # Own probabilities of class 1: 0.27, 0.27, 0.95; the means 0.58, 0.43, 0.63.
  assert scores["single_accuracy"] == pytest.approx([2 / 3, 1 / 3])
  assert scores["ensemble_accuracy"] == 1 and scores["num_models"] == 2
  assert scores["ensemble_error_percent"] == 0
  assert scores["unanimous"] == 0


def test_all_models_must_agree_to_be_unanimous(run, monkeypatch, some):
  given(monkeypatch, scores=OTHER)  # two models agree, and never with the first
  options = models.Options(ensemble=["other", "third"])
  scores = ensembles.ensemble(run, some, options)
  assert (scores["num_models"], scores["unanimous"]) == (3, 0)


def test_each_model_counts_once(run, monkeypatch, some, tmp_path):
  given(monkeypatch, scores=OTHER)
  for paths in (
    [str(run.workdir)],
    [str(tmp_path / "a"), f"{tmp_path}/b/../a"],
  ):
    with pytest.raises(ValueError, match="is this run, or is given twice"):
      ensembles.ensemble(run, some, models.Options(ensemble=paths))


def test_other_kinds_are_refused(run, monkeypatch, some):
  options = models.Options(ensemble=["other"])
  for prediction in (
    {"kind": "activations", "scores": OTHER},
    {"scores": np.zeros((3, 4))},
  ):
    given(monkeypatch, **prediction)
    with pytest.raises(ValueError, match="no probabilities of 2 classes; give"):
      ensembles.ensemble(run, some, options)
  given(monkeypatch, scores=OTHER, names=("1", "0"))
  with pytest.raises(ValueError, match="=other are 1, 0, those of this run 0"):
    ensembles.ensemble(run, some, options)
  with pytest.raises(ValueError, match="give them as --ensemble"):
    ensembles.ensemble(run, some)
