"""The curves that pictures show."""

from experiments import gallery


def test_curves_are_means_over_seeds(monkeypatch):
  seeds = [
    {"shift": [0.0, 2.0], "error": [1.0, 4.0]},
    {"shift": [0.0, 2.0], "error": [2.0, 8.0]},
  ]
  asked = []

  def records(*words):
    asked.append(words)
    yield from seeds

  monkeypatch.setattr(gallery, "records", records)
  found = gallery.curve("a_run", "a_suite", "shift", "error")
  assert found == {0.0: 1.5, 2.0: 6.0}
  assert asked == [("a_run", "a_suite")]
