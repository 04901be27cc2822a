"""Controls without a model: principal components of the pixels."""

import numpy as np
from etils import epy
from jaxtyping import Float

with epy.lazy_imports():  # it takes seconds, and --help needs none
  from sklearn import decomposition


def components(
  fitted: Float[np.ndarray, "N P"],
  tested: Float[np.ndarray, "M P"],
  count: int,
) -> tuple[Float[np.ndarray, "N C"], Float[np.ndarray, "M C"]]:
  """The first principal components of pixels, as features of images.

  All are divided by one number, the standard deviation over all of them. If
  each were divided by its own, the last components, which are mostly noise,
  would weigh as much as the first.

  Args:
    fitted: the pixels of the images to which the components are fitted.
    tested: the pixels of other images.
    count: the number of components, at most.

  Returns:
    The components of both; C is smaller than `count` if there are fewer images
    or pixels.
  """
  size = min(count, *fitted.shape)
  model = decomposition.PCA(size, random_state=0).fit(fitted)
  own, others = model.transform(fitted), model.transform(tested)
  scale = max(np.std(own), 1e-12)
  return own / scale, others / scale
