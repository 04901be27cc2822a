"""Lines on the progress of something long."""

from experiments.run import progress


def test_progress_is_told_every_ten_seconds(capsys, monkeypatch):
  now = [100.0]
  monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
  tell = progress.Progress("measured", "images")
  for done in range(1, 8):
    now[0] += 4.0
    tell(1000 * done, 7000)
  assert capsys.readouterr().out.splitlines() == [
    "measured 3,000 of 7,000 images so far",
    "measured 6,000 of 7,000 images so far",
  ]  # fmt: skip
