"""Spectra: which images are shown, and from which the class is told."""

from types import SimpleNamespace

import numpy as np

from capjax import data
from experiments.evaluation import latents, models


def _dataset(first, labels):
  """Images whose only pixel is their number, counted from the first."""
  images = np.arange(first, first + len(labels), dtype=np.uint8)
  return data.Dataset(
    images.reshape(-1, 1, 1, 1),
    np.int32(labels),
    3,
    {},
    class_names=("cat", "dog", "owl"),
  )


def test_the_first_ten_test_images_of_each_class_are_shown(run, monkeypatch):
  """Of 30 cats, 7 dogs and no owl; training images are not shown."""
  drawn, judged = [], []
  monkeypatch.setattr(
    latents.energy_models, "spectra", lambda *x: drawn.append(x)
  )
  monkeypatch.setattr(
    latents, "_activities", lambda _, images: {"0": images[:, 0, 0]}
  )
  monkeypatch.setattr(
    latents, "_knowledge", lambda *x: judged.append(x) or {"accuracy": 0.5}
  )
  labels = np.arange(37) % 5 == 2
  test, train = _dataset(0, labels), _dataset(100, np.arange(50) % 3)
  trained = SimpleNamespace(test=test, load_train=lambda: train)
  assert latents.spectra(run, trained, models.Options()) == {
    "accuracy": 0.5, "num_tested": 37, "num_informative": 37
  }  # fmt: skip
  ((classes, names, path),) = drawn
  assert [list(x.ravel()) for x in classes] == [
    [0, 1, 3, 4, 5, 6, 8, 9, 10, 11], [2, 7, 12, 17, 22, 27, 32], []
  ]  # fmt: skip
  assert list(names) == ["cat", "dog", "owl"]
  assert path == run.figure("spectra")
  ((learnt, learnt_labels, tested, test_labels),) = judged
  np.testing.assert_array_equal(learnt.ravel(), np.arange(100, 150))
  np.testing.assert_array_equal(learnt_labels, train.labels)
  np.testing.assert_array_equal(tested.ravel(), np.arange(37))
  np.testing.assert_array_equal(test_labels, labels)
