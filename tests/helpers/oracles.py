"""Equations as the papers print them, in float64 NumPy, for several tests."""

import numpy as np


def squash(s):
  """Squashes one vector (Sabour et al., 2017, equation 1)."""
  norm = np.sqrt(np.sum(s**2))
  return norm**2 / (1 + norm**2) * s / norm if norm else 0 * s


def exponential_squash(s):
  """Squashes one vector as in Mazzia et al. (2021)."""
  norm = np.sqrt(np.sum(s**2))
  return (1 - np.exp(-norm)) * s / norm if norm else 0 * s


def softmax(scores):
  """The softmax of a list of numbers, such as those of a part's parents."""
  weights = [np.exp(score - max(scores)) for score in scores]
  return np.array(weights) / sum(weights)


def convolve(images, kernel, *, stride=1, padding="VALID"):
  """out[b, y, x, d] = sum images[b, Sy + v, Sx + u, c] kernel[v, u, c, d]."""
  images, kernel = np.float64(images), np.float64(kernel)
  taps = kernel.shape[:2]
  if padding == "SAME":
    around = []
    for size, k in zip(images.shape[1:3], taps, strict=True):
      missing = max((int(np.ceil(size / stride)) - 1) * stride + k - size, 0)
      around.append((missing // 2, missing - missing // 2))
    images = np.pad(images, ((0, 0), *around, (0, 0)))
  rows, columns = (
    (size - k) // stride + 1
    for size, k in zip(images.shape[1:3], taps, strict=True)
  )
  out = np.zeros((len(images), rows, columns, kernel.shape[3]))
  for b in range(len(images)):
    for y in range(rows):
      for x in range(columns):
        for v in range(taps[0]):
          for u in range(taps[1]):
            pixel = images[b, stride * y + v, stride * x + u]
            out[b, y, x] += pixel @ kernel[v, u]
  return out


def dynamic_routing(votes, *, num_iterations=3, bias=None, leaky=False):
  """Procedure 1 of Sabour et al. (2017) with logits b_ij.

  Returns:
    v [J D], |v| [J] and c [I J].
  """
  votes = np.float64(votes)
  num_parts, num_parents, pose_size = votes.shape
  bias = np.zeros((num_parents, pose_size)) if bias is None else bias
  b = np.zeros((num_parts, num_parents))
  for _ in range(num_iterations):
    c, v = np.zeros_like(b), np.zeros((num_parents, pose_size))
    for i in range(num_parts):
      c[i] = softmax([0.0, *b[i]])[1:] if leaky else softmax(b[i])
    for j in range(num_parents):
      s = np.float64(bias[j])
      for i in range(num_parts):
        s = s + c[i, j] * votes[i, j]
      v[j] = squash(s)
    for i in range(num_parts):
      for j in range(num_parents):
        b[i, j] += votes[i, j] @ v[j]
  return v, np.sqrt(np.sum(v**2, axis=1)), c


def decode(poses, label, layers):
  """The decoder for one example: dense layers of the pose of a class.

  The poses of the other classes are 0. ReLU follows each layer but the last,
  which the logistic function follows (Sabour et al., 2017, section 4.1).
  """
  x = np.zeros_like(poses)
  x[label] = poses[label]
  x = x.reshape(-1)
  for number in range(len(layers)):
    x = x @ layers[number]["kernel"] + layers[number]["bias"]
    x = np.maximum(0, x) if number < len(layers) - 1 else 1 / (1 + np.exp(-x))
  return x
