"""Shifts images by whole pixels as evaluations do, and checks every pixel.

It runs in a process of its own, by `processes.Running("shifting", package="",
...)`. The errors that it looks for occur only if the compiler optimises, which
most tests turn off.
"""

import jax
import numpy as np

from capjax.evaluation import views
from experiments.training import placing, train_step

_SIZES = (28, 32, 40)
_AXES = (1, 2)  # rows and columns, in a batch of images


def _sample(key, index, images, weights, shift):
  """An image after the shift."""
  del key
  image = train_step.as_intensities(images[index])
  return views.translate(image, *shift), weights[index]


def _sample_gradients(key, index, images, weights, shift):
  """Gradients of a weighted sum of the shifted image, by image and shift."""
  del key
  image = train_step.as_intensities(images[index])
  _, pull = jax.vjp(lambda *x: views.translate(x[0], *x[1]), image, shift)
  return pull(weights[index])


def _moved(images, distance, axis):
  """Images [B H W 1] shifted by whole pixels, with zeros from outside."""
  size = images.shape[axis]
  margin = [(0, 0)] * 4
  margin[axis] = (max(distance, 0), max(-distance, 0))
  start = max(-distance, 0)
  return np.pad(images, margin).take(range(start, start + size), axis)


def _check(evaluate, evaluate_gradients, images, weights, distance, axis):
  shift = np.float32([distance, 0] if axis == 2 else [0, distance])
  got = evaluate(None, images, weights, shift)["shifted"]
  gradients = evaluate_gradients(None, images, weights, shift)
  images = np.float32(images) / 255
  label = f"{images.shape[1]} pixels, {distance} along axis {axis}"
  want = _moved(images, distance, axis)
  np.testing.assert_allclose(got, want, atol=1e-4, err_msg=label)
  want = _moved(weights, -distance, axis)
  np.testing.assert_allclose(gradients["image"], want, atol=1e-4, err_msg=label)
  # At a pixel centre the derivative is that of either side.
  for column, along in ((0, 2), (1, 1)):
    sides = []
    for step in (-1, 1):
      margin = [(0, 0)] * 4
      margin[axis] = margin[along] = (images.shape[1],) * 2
      wide = np.pad(images, margin)
      change = step * (wide - np.roll(wide, step, along))
      change = np.roll(change, distance, axis)
      inner = [slice(None)] * 4
      for padded in {axis, along}:
        inner[padded] = slice(images.shape[1], 2 * images.shape[1])
      sides.append(weights * -change[tuple(inner)])
    low = np.sum(np.minimum(*sides), (1, 2, 3)) - 1e-3
    high = np.sum(np.maximum(*sides), (1, 2, 3)) + 1e-3
    found = gradients["shift"][:, column]
    np.testing.assert_array_less(low, found, err_msg=label)
    np.testing.assert_array_less(found, high, err_msg=label)


def main() -> None:
  setting = dict(batch_size=2, mesh=placing.data_mesh(2))
  evaluate = train_step.make_evaluate(
    lambda model, shifted, weights: {"shifted": shifted},
    sample=_sample,
    **setting,
  )
  evaluate_gradients = train_step.make_evaluate(
    lambda model, image, shift: {"image": image, "shift": shift},
    sample=_sample_gradients,
    **setting,
  )
  random = np.random.default_rng(0)
  for size in _SIZES:
    images = random.integers(0, 256, (4, size, size, 1), dtype=np.uint8)
    weights = random.uniform(0.5, 1, images.shape).astype(np.float32)
    for axis in _AXES:
      for distance in range(1 - size, size):
        _check(evaluate, evaluate_gradients, images, weights, distance, axis)
  print(f"shifted under {jax.devices()[0].platform}")


if __name__ == "__main__":
  main()
