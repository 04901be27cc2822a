"""Scores of a suite as text for a terminal."""

from collections.abc import Mapping

from .models import Scores


def table(suite: str, scores: Scores, num_images: Mapping[str, int]) -> str:
  """The scores of a suite, one row for each number or curve.

  Args:
    suite: its name.
    scores: its scores.
    num_images: the number of test images that each score was measured on.
  """
  counts = sorted({num_images[name] for name in scores if name in num_images})
  images = " and ".join(f"{count:,}" for count in counts if count)
  title = f"{suite}, on {images} test images" if images else suite
  scores = {x: y for x, y in scores.items() if x != "num_images"}
  numbers = {x: y for x, y in scores.items() if not isinstance(y, list)}
  curves = {x: y for x, y in scores.items() if isinstance(y, list)}
  width = max(map(len, scores), default=0)
  rows = [f"  {x:<{width}}  {_number(y):>9}" for x, y in numbers.items()]
  cells = {x: [_number(point, 3) for point in y] for x, y in curves.items()}
  # Curves of one length stand below each other, point by point.
  wide = max((len(x) for row in cells.values() for x in row), default=0)
  rows += [
    f"  {x:<{width}}  {' '.join(f'{cell:>{wide}}' for cell in row)}"
    for x, row in cells.items()
  ]
  return "\n".join([title, *rows])


def _number(value: float, digits: int = 4) -> str:
  """A number with `digits` significant digits; whole numbers in full."""
  if float(value).is_integer() and abs(value) < 1e15:
    return f"{int(value):,}"
  return f"{value:.{digits}g}"
