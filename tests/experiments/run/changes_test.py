"""How a record differs from the one that a run was started with."""

from experiments.run import changes


def test_values_are_named_with_what_they_were():
  old = {"class": "A", "arguments": {"x": 1, "y": 2}, "count": 3}
  new = {"class": "A", "arguments": {"x": 4, "z": 5}, "count": 6, "newer": 7}
  assert changes.between(old, new) == [
    "x was 1, is 4",
    "y was 2, is unset",
    "z was unset, is 5",
    "count was 3, is 6",
  ]
  assert changes.between(old, old) == []


def test_fingerprints_and_long_values_are_short():
  old = {"train": 64 * "a", "class_names": ["a", "b"], "shape": [4], "x": "y"}
  new = {
    "train": 64 * "b", "class_names": ["a", "c"], "shape": [4, 4],
    "x": 99 * "z",
  }  # fmt: skip
  *told, last = changes.between(old, new)
  assert told == [
    "the train images or labels differ",
    "class_names[1] was b, is c",
    "shape had 1 entries, has 2",
  ]
  assert last == f"x was y, is {57 * 'z'}..."
