"""How poses change when an image is transformed, and what they predict."""

import warnings
from typing import NamedTuple

import numpy as np
from etils import epy
from jaxtyping import Float

from capjax.evaluation import clustering

with epy.lazy_imports():  # these take seconds, and --help needs none
  from sklearn import (
    exceptions,
    linear_model,
    neural_network,
    pipeline,
    preprocessing,
  )

# Rounding error of numbers in float32, relative to the largest number.
_ROUNDING = 4 * float(np.finfo(np.float32).eps)
_PENALTY = 1.0  # of squared weights; the scales of features are about 1
_HIDDEN = 64  # units of the small network
_STOPPED = 20  # least number of examples for early stopping


class Readout(NamedTuple):
  """How well one number is predicted from features.

  Attributes:
    r2: 1 - squared error / variance, on test examples; 1 is exact, 0 as good as
      the mean, below 0 is worse.
    error: the root of the mean squared error, in the unit of the number.
  """

  r2: float
  error: float


def readouts(
  features: Float[np.ndarray, "N F"],
  values: Float[np.ndarray, " N"],
  test_features: Float[np.ndarray, "M F"],
  test_values: Float[np.ndarray, " M"],
  *,
  standardise: bool = True,
) -> dict[str, Readout]:
  """Predicts a number, such as an angle, from features by two regressions.

  Args:
    features: of the examples that are fitted, such as poses; any scale.
    values: the number for each.
    test_features: of other examples.
    test_values: the number for each of these.
    standardise: whether each feature gets a mean of 0 and a standard deviation
      of 1. If not, features of a larger scale have more weight, and scales
      should be about 1: give False for principal components, whose scales show
      their importance.

  Returns:
    `linear`: ridge regression; `mlp`: a network with one hidden layer of 64
    units, stopped early on a tenth of the examples where there are 20 or more.

  Raises:
    ValueError: if there are fewer than two test examples, their values are all
      the same, values are not one number for each row, or anything is not
      finite.
  """
  _require_two(test_values=test_values)
  for name, rows, of_rows in (
    ("values", features, values),
    ("test_values", test_features, test_values),
  ):
    if np.shape(of_rows) != (len(rows),):
      raise ValueError(
        f"{name} has shape {list(np.shape(of_rows))}; give [{len(rows)}], one "
        "number for each row of features."
      )
  if np.ptp(test_values) == 0:
    raise ValueError(
      "test_values are all the same; give examples among which they differ, "
      "since errors are shares of their variance."
    )
  clustering.check_finite(features, values, test_features, test_values)
  mean, deviation = np.mean(values), max(np.std(values), 1e-12)
  regressions = {
    "linear": _ridge(standardise),
    "mlp": pipeline.make_pipeline(
      *_scalers(standardise),
      neural_network.MLPRegressor(
        hidden_layer_sizes=(_HIDDEN,),
        early_stopping=len(features) >= _STOPPED,
        max_iter=300,
        random_state=0,
      ),
    ),
  }
  found = {}
  for name, regression in regressions.items():
    with warnings.catch_warnings():  # the network may not have converged
      warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
      regression.fit(features, (values - mean) / deviation)
    predicted = mean + deviation * regression.predict(test_features)
    square = np.mean(np.square(predicted - test_values))
    r2 = 1 - square / np.var(test_values, dtype=np.float64)
    found[name] = Readout(float(r2), float(np.sqrt(square)))
  return found


class Change(NamedTuple):
  """How poses change under one known transformation of the image.

  Both errors are squared errors divided by the variance of the poses of
  transformed images, each summed over the numbers of a pose: 0 is exact, 1 is
  as good as the mean pose. Both are 1 if the poses of all test images after the
  transformation are equal up to the rounding of float32.

  Attributes:
    equivariance_error: the error if one linear map with an offset predicts the
      poses after the transformation from those before it. If this error is
      small, the poses are equivariant.
    invariance_error: the error if the poses before the transformation are taken
      as the prediction. If this error is small too, the poses hardly depend on
      the transformation.
  """

  equivariance_error: float
  invariance_error: float


def change(
  before: Float[np.ndarray, "N F"],
  after: Float[np.ndarray, "N F"],
  test_before: Float[np.ndarray, "M F"],
  test_after: Float[np.ndarray, "M F"],
) -> Change:
  """Measures how poses change (after Lenc and Vedaldi, 2015, section 3).

  Args:
    before: poses of images, to which the map is fitted.
    after: poses of the same images, all transformed in the same way.
    test_before: poses of other images.
    test_after: their poses after the same transformation.

  Raises:
    ValueError: if there are fewer than two other images, the poses before and
      after differ in shape, or poses are not finite.

  Differs from paper: the map is judged by the poses themselves, not by the loss
  of the layers above them.
  """
  _require_two(test_after=test_after)
  for name, one, other in (
    ("after", before, after),
    ("test_after", test_before, test_after),
  ):
    found, wanted = list(np.shape(other)), list(np.shape(one))
    if found != wanted:
      raise ValueError(
        f"{name} has shape {found}; give {wanted}, as of the images before."
      )
  clustering.check_finite(before, after, test_before, test_after)
  predicted = _ridge().fit(before, after).predict(test_before)
  test_after = np.asarray(test_after, np.float64)
  deviations = test_after - np.mean(test_after, axis=0)
  rounding = _ROUNDING * np.abs(test_after).max(axis=0)
  if np.all(np.abs(deviations) <= rounding):
    return Change(1.0, 1.0)
  total = np.sum(np.square(deviations))
  errors = (
    float(np.sum(np.square(test_after - guess)) / total)
    for guess in (predicted, test_before)
  )
  return Change(*errors)


def _require_two(**examples):
  """Checks that there are two examples or more, which have a variance."""
  for name, values in examples.items():
    if len(values) < 2:
      raise ValueError(
        f"{name} is of {len(values)} examples; give at least 2, since errors "
        "are shares of their variance."
      )


def _scalers(standardise):
  return [preprocessing.StandardScaler()] if standardise else []


def _ridge(standardise=True):
  return pipeline.make_pipeline(
    *_scalers(standardise), linear_model.Ridge(_PENALTY)
  )
