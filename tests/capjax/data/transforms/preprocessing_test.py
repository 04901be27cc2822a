"""Preprocessing by a description, against the functions that it names."""

import json

import jax
import numpy as np
import pytest
import saved_cases

from capjax.data.transforms import augment, preprocessing, stereo
from capjax.data.transforms.preprocessing import Preprocessing


@pytest.mark.parametrize("name", saved_cases.STEPS)
def test_a_description_comes_back_from_json(name):
  steps = saved_cases.STEPS[name]
  text = json.dumps(steps.as_json())
  assert preprocessing.from_json(json.loads(text)) == steps
  assert ("null" not in text) and (text == "{}") == (name == "none")


def test_steps_are_those_of_training():
  image = jax.random.uniform(jax.random.key(0), (48, 48, 2))
  cut = stereo.centre_crop(stereo.downsample(image, size=24), size=20)
  steps = saved_cases.STEPS["stereo"]
  np.testing.assert_array_equal(steps.prepare(image), cut)
  np.testing.assert_array_equal(steps(image), stereo.standardise(255 * cut))
  assert steps.output_shape(image.shape) == (20, 20, 2)
  steps = saved_cases.STEPS["crop last"]
  whole = stereo.downsample(image, size=24)
  np.testing.assert_array_equal(steps.prepare(image), whole)
  cut = stereo.centre_crop(stereo.standardise(255 * whole), size=20)
  np.testing.assert_array_equal(steps(image), cut)
  assert steps.output_shape(image.shape) == (20, 20, 2)
  small = image[:12, :11]
  steps = saved_cases.STEPS["canvas"]
  placed = augment.centre_pad(small, canvas=(20, 22))
  np.testing.assert_array_equal(steps(small), placed)
  np.testing.assert_array_equal(Preprocessing()(small), small)


@pytest.mark.parametrize(
  ("described", "words"),
  [
    ({"canvas": [40, 40], "rotate": 3}, "unknown preprocessing rotate"),
    ({"canvas": 40}, "preprocessing .*canvas.*40"),
    ({"crop": "wide"}, "preprocessing .*wide"),
  ],
)
def test_a_wrong_description_is_refused(described, words):
  with pytest.raises(ValueError, match=words):
    preprocessing.from_json(described)


def test_images_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match="smaller than the image"):
    saved_cases.STEPS["canvas"].output_shape((30, 30, 1))
