"""Accuracy from features: clusters, linear probes, few labels.

Functions of NumPy features [N F] and labels [N]. `match_accuracy` and
`probe_accuracy` learn from the labels of the training set. `refit_accuracy`
uses the labels of the set that it reports on. Features that are NaN or infinite
are refused.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epy
from jaxtyping import Float, Int, Shaped

from capjax.kernels import checks

with epy.lazy_imports():  # these take seconds, and --help needs none
  from scipy import optimize
  from sklearn import cluster, exceptions, linear_model, preprocessing

_NUM_STARTS = 10
_COUNTS = (10, 25, 100, 1000)  # of labels, by default
_MAX_ITERATIONS = 1000


class FewLabels(NamedTuple):
  """Accuracy by the number of labels.

  Attributes:
    counts: S, of labels.
    mean: mean accuracy over random choices of the labelled examples.
    sd: standard deviation over these choices.
  """

  counts: tuple[int, ...]
  mean: Float[np.ndarray, " S"]
  sd: Float[np.ndarray, " S"]


def fit_means(
  features: Float[np.ndarray, "N F"], num_clusters: int, *, seed: int = 0
) -> "cluster.KMeans":
  """Finds clusters by k-means, with 10 starts and up to 1000 iterations.

  Args:
    features: on scales that can be compared.
    num_clusters: K.
    seed: seed of the starts.

  Returns:
    The estimator of scikit-learn, fitted.

  Raises:
    TypeError: if `num_clusters` is no whole number.
    ValueError: if a feature is not finite, there is no cluster, or there are
      fewer examples than clusters.
  """
  checks.counts(num_clusters=num_clusters)
  check_finite(features)
  if len(features) < num_clusters:
    raise ValueError(
      f"{len(features)} examples cannot form {num_clusters} clusters; give "
      "more."
    )
  means = cluster.KMeans(
    num_clusters,
    n_init=_NUM_STARTS,
    max_iter=_MAX_ITERATIONS,
    random_state=seed,
  )
  with warnings.catch_warnings():
    # Equal features make fewer clusters than classes; the accuracy shows this.
    warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
    return means.fit(features)


def match(
  clusters: Int[np.ndarray, " N"], labels: Shaped[np.ndarray, " N"]
) -> dict[int, Any]:
  """Assigns a different class to each cluster, so that most examples are right.

  The optimal one-to-one assignment, by the Hungarian method (Kuhn, 1955). If
  there are more clusters than classes, or fewer, the remaining ones are not
  assigned.

  Args:
    clusters: cluster of each example.
    labels: its class, a whole number or a word.

  Returns:
    The class of each cluster that has one.

  Raises:
    ValueError: if there is not one label for each example.
  """
  checks.same_shape(np.shape(clusters), labels=labels)
  kinds, rows = np.unique(clusters, return_inverse=True)
  classes, columns = np.unique(labels, return_inverse=True)
  shared = np.zeros((len(kinds), len(classes)), np.int64)
  np.add.at(shared, (rows, columns), 1)
  chosen = zip(
    *optimize.linear_sum_assignment(shared, maximize=True), strict=True
  )
  return {int(kinds[row]): classes[column].item() for row, column in chosen}


def match_accuracy(
  train_features: Float[np.ndarray, "N F"],
  train_labels: Shaped[np.ndarray, " N"],
  test_features: Float[np.ndarray, "M F"],
  test_labels: Shaped[np.ndarray, " M"],
  *,
  seed: int = 0,
) -> float:
  """Accuracy of k-means clusters, found and named on the training set.

  As many clusters as classes, by `fit_means` on the features as they are, and a
  class for each by `match`.

  Args:
    train_features: to cluster.
    train_labels: whole numbers or words, used only to name the clusters.
    test_features: each is in the cluster of the nearest centre.
    test_labels: used only to compute the accuracy.
    seed: seed of the starts of k-means.

  Returns:
    In [0, 1].

  Raises:
    ValueError: if a feature is not finite, there are fewer training examples
      than classes, or labels are not one for each row.

  Differs from the paper (Kosiorek et al., 2019, section 3): its code names
  clusters by the labels of the set that it reports on, and fits them to it too,
  which is `refit_accuracy`.
  """
  _check_labels((train_features, train_labels), (test_features, test_labels))
  check_finite(test_features)
  means = fit_means(train_features, len(np.unique(train_labels)), seed=seed)
  names = match(means.labels_, train_labels)
  return _named_accuracy(means.predict(test_features), names, test_labels)


def refit_accuracy(
  features: Float[np.ndarray, "N F"],
  labels: Shaped[np.ndarray, " N"],
  *,
  seed: int = 0,
) -> float:
  """Accuracy of k-means clusters, found and named on the set reported on.

  As `match_accuracy`, but on one set, as the code of Kosiorek et al. (2019)
  reports it. The result is optimistic, most of all for few examples.

  Args:
    features: to cluster.
    labels: used to name the clusters and to compute the accuracy.
    seed: seed of the starts of k-means.

  Returns:
    In [0, 1].

  Raises:
    ValueError: as for `match_accuracy`.
  """
  _check_labels((features, labels))
  means = fit_means(features, len(np.unique(labels)), seed=seed)
  return _named_accuracy(means.labels_, match(means.labels_, labels), labels)


def probe_accuracy(
  train_features: Float[np.ndarray, "N F"],
  train_labels: Int[np.ndarray, " N"],
  test_features: Float[np.ndarray, "M F"],
  test_labels: Int[np.ndarray, " M"],
) -> float:
  """Accuracy of multinomial logistic regression on standardised features.

  Means and standard deviations are those of the training set; half the squared
  weights are added to the summed cross-entropy.

  Args:
    train_features: features that the regression is fitted to.
    train_labels: their classes, at least two different ones.
    test_features: features of other examples.
    test_labels: their classes, with which predictions are compared.

  Returns:
    In [0, 1].

  Raises:
    ValueError: if a feature is not finite, there is one class only, or labels
      are not one for each row.
  """
  _check_labels((train_features, train_labels), (test_features, test_labels))
  learnt, tested = _standardise(train_features, test_features)
  predictions = _probe(learnt, train_labels, tested)
  return float(np.mean(predictions == test_labels))


def spread_labels(
  scores: Float[np.ndarray, "n K"],
  labels: Int[np.ndarray, " n"],
  test_scores: Float[np.ndarray, "M K"],
) -> Int[np.ndarray, " M"]:
  """Classifies examples by clusters that a few labelled examples name.

  A cluster gets the class of most of its labelled members. A cluster without
  labelled members gets the class of the labelled example with the highest score
  for it.

  Args:
    scores: how well each labelled example fits each cluster, such as a log
      probability or a negative distance; an example is a member of the cluster
      with its highest score.
    labels: classes of the labelled examples.
    test_scores: the same scores of the other examples.

  Returns:
    Classes of the other examples. Of equally frequent classes in a cluster, the
    lowest counts.
  """
  labels = np.asarray(labels)
  members = np.argmax(scores, axis=-1)
  names = labels[np.argmax(scores, axis=0)]
  for kind in np.unique(members):
    classes, counts = np.unique(labels[members == kind], return_counts=True)
    names[kind] = classes[np.argmax(counts)]
  return names[np.argmax(test_scores, axis=-1)]


def few_label_curve(
  predict: Callable[
    [Int[np.ndarray, " n"], Int[np.ndarray, " n"]], Int[np.ndarray, " M"]
  ],
  train_labels: Int[np.ndarray, " N"],
  test_labels: Int[np.ndarray, " M"],
  *,
  counts: Sequence[int] | None = None,
  repeats: int = 10,
  seed: int = 0,
) -> FewLabels:
  """Accuracy of a classifier that sees few of the training labels.

  Args:
    predict: `(rows, their labels) -> classes of the test set`; it may use
      training examples without their labels.
    train_labels: labels, of which some are shown: equally many of each class up
      to one.
    test_labels: used only to compute the accuracy.
    counts: numbers of labels shown. Those above the size of the training set
      are left out; at least one must remain. By default those of 10, 25, 100
      and 1000 for which every class has enough examples; if there are none, one
      label of each class.
    repeats: random choices of the labelled examples for each count.
    seed: seed of these choices; the same for every `predict`.

  Returns:
    Mean and standard deviation over these choices, for each count.

  Raises:
    ValueError: if a count is less than the number of classes, all counts are
      above the size of the training set, a class has too few examples, there
      are fewer than two repeats, or predictions or test labels are not one
      class for each image.
  """
  if repeats < 2:
    raise ValueError(
      f"repeats={repeats}; a standard deviation needs at least 2."
    )
  train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
  asked = tuple(_usual_counts(train_labels) if counts is None else counts)
  counts = tuple(count for count in asked if count <= len(train_labels))
  if asked and not counts:
    raise ValueError(
      f"counts are {asked}, of {len(train_labels)} train_labels; give a count "
      f"of at most {len(train_labels)}."
    )
  generator = np.random.default_rng(seed)
  accuracies = np.empty((len(counts), repeats))
  for accuracy, count in zip(accuracies, counts, strict=True):
    for repeat in range(repeats):
      rows = _sample_balanced(generator, train_labels, count)
      predictions = predict(rows, train_labels[rows])
      shapes = {np.shape(predictions), np.shape(test_labels)}
      if shapes != {(len(test_labels),)}:
        raise ValueError(
          f"predictions are {list(np.shape(predictions))}, test_labels "
          f"{list(np.shape(test_labels))}; give one class for each image."
        )
      accuracy[repeat] = np.mean(predictions == test_labels)
  return FewLabels(
    counts, accuracies.mean(axis=1), accuracies.std(axis=1, ddof=1)
  )


def few_label_accuracy(
  train_features: Float[np.ndarray, "N F"],
  train_labels: Int[np.ndarray, " N"],
  test_features: Float[np.ndarray, "M F"],
  test_labels: Int[np.ndarray, " M"],
  *,
  counts: Sequence[int] | None = None,
  repeats: int = 10,
  seed: int = 0,
) -> dict[str, FewLabels]:
  """Accuracy from few labels, by a linear classifier and by clusters.

  All training features are used, but only those labels that `few_label_curve`
  shows.

  Args:
    train_features: all of them.
    train_labels: their labels, of which some are shown.
    test_features: to classify.
    test_labels: used only to compute the accuracy.
    counts: numbers of labels; by default as for `few_label_curve`.
    repeats: random choices for each count, the same for both.
    seed: seed of these choices, and of k-means.

  Returns:
    `linear`: logistic regression on the labelled examples, with features
    standardised over all examples. `clusters`: `spread_labels` over the
    clusters of `match_accuracy`; once all clusters are named, more labels
    hardly change anything.

  Raises:
    ValueError: as for `match_accuracy` and `few_label_curve`.
  """
  _check_labels((train_features, train_labels), (test_features, test_labels))
  learnt, tested = _standardise(train_features, test_features)
  means = fit_means(train_features, len(np.unique(train_labels)), seed=seed)
  near, test_near = (
    -means.transform(x) for x in (train_features, test_features)
  )
  classifiers = {
    "linear": lambda rows, labels: _probe(learnt[rows], labels, tested),
    "clusters": lambda rows, labels: spread_labels(
      near[rows], labels, test_near
    ),
  }
  return {
    name: few_label_curve(
      predict,
      train_labels,
      test_labels,
      counts=counts,
      repeats=repeats,
      seed=seed,
    )
    for name, predict in classifiers.items()
  }


def _check_labels(*pairs):
  shapes = [np.shape(features) for features, _ in pairs]
  if {len(x) for x in shapes} != {2} or len({x[1] for x in shapes}) > 1:
    texts = " and ".join(str(list(x)) for x in shapes)
    raise ValueError(
      f"features are {texts}; give matrices with equally many columns."
    )
  for features, labels in pairs:
    if not len(features):
      raise ValueError(
        f"features are {list(np.shape(features))}, of no example; give at "
        "least one."
      )
    if np.shape(labels) != (len(features),):
      raise ValueError(
        f"labels are {list(np.shape(labels))}; give one for each row of "
        f"features, {list(np.shape(features))}."
      )


def check_finite(*sets: Float[np.ndarray, "..."]) -> None:
  """Checks that features are finite.

  Args:
    *sets: arrays of features.

  Raises:
    ValueError: if a feature is NaN or infinite.
  """
  for features in sets:
    if not np.isfinite(features).all():
      raise ValueError(
        "features hold NaN or infinities; look at the model that made them."
      )


def _standardise(train_features, test_features):
  check_finite(train_features, test_features)
  scaler = preprocessing.StandardScaler().fit(train_features)
  return scaler.transform(train_features), scaler.transform(test_features)


def _probe(features, labels, test_features):
  if len(np.unique(labels)) < 2:
    raise ValueError("all labels are of one class; give at least two classes.")
  probe = linear_model.LogisticRegression(max_iter=_MAX_ITERATIONS)
  return probe.fit(features, labels).predict(test_features)


def _named_accuracy(clusters, names, labels) -> float:
  right = [
    names.get(int(kind)) == label
    for kind, label in zip(clusters, labels, strict=True)
  ]
  return float(np.mean(right))


def _usual_counts(labels):
  classes, sizes = np.unique(labels, return_counts=True)
  fewest, most = len(classes), len(classes) * min(sizes)
  return [n for n in _COUNTS if fewest <= n <= most] or [fewest]


def _sample_balanced(generator, labels, count):
  """Samples `count` rows, equally many of each class up to one."""
  classes = np.unique(labels)
  if count < len(classes):
    raise ValueError(
      f"{count} labels cannot show {len(classes)} classes; give at least one "
      "for each."
    )
  each, over = divmod(count, len(classes))
  gets_more = generator.permutation(len(classes)) < over
  rows = []
  for kind, more in zip(classes, gets_more, strict=True):
    members = np.flatnonzero(labels == kind)
    if len(members) < each + more:
      raise ValueError(
        f"class {kind} has {len(members)} examples, too few for {count} labels "
        "that are evenly spread; ask for fewer."
      )
    rows.append(generator.choice(members, each + more, replace=False))
  return np.concatenate(rows)
