"""Viewpoint solids: figures, factors, splits, and the file they are kept in."""

import functools
import itertools
import logging
import math
import zlib

import jax
import numpy as np
import pytest

from capjax import data
from capjax.data.viewpoint_solids import parts, raytracing, solids, toys

_NAMES = ("instance", "azimuth", "elevation", "lighting")
_AZIMUTHS, _ELEVATIONS, _SIZE = (0, 7), (2, 8), 16


@functools.cache
def _generated(split, seed=0):
  return solids.generate(
    split,
    seed=seed,
    size=_SIZE,
    azimuths=_AZIMUTHS,
    elevations=_ELEVATIONS,
  )


def _kinds(dataset):
  """What the examples show, in their order."""
  columns = [dataset.labels, *(dataset.factors[f"label_{n}"] for n in _NAMES)]
  return list(zip(*(column.tolist() for column in columns), strict=True))


def _by_kind(dataset):
  return dict(zip(_kinds(dataset), dataset.images, strict=True))


@pytest.fixture(scope="module")
def figures():
  return {(c, n): toys.figure(c, n) for c in range(5) for n in range(10)}


@pytest.mark.long
def test_every_view_is_there_once():
  for split, instances in (("train", range(5)), ("test", range(5, 10))):
    got = _generated(split)
    expected = itertools.product(
      range(5), instances, _AZIMUTHS, _ELEVATIONS, range(6)
    )
    assert sorted(_kinds(got)) == sorted(expected)
    assert got.images.shape == (600, _SIZE, _SIZE, 2)
    assert got.images.dtype == np.uint8
    assert got.num_classes == len(toys.CATEGORIES) == 5
    for values in (got.labels, *got.factors.values()):
      assert values.dtype == np.int32


def test_all_views_are_as_many_as_in_smallnorb():
  counts = solids.NUM_AZIMUTHS, solids.NUM_ELEVATIONS, solids.NUM_LIGHTINGS
  assert 5 * 5 * math.prod(counts) == 24_300


@pytest.mark.long
def test_images_are_of_the_view_that_the_factors_tell():
  got = _by_kind(_generated("test"))
  render = jax.jit(functools.partial(raytracing.render, size=_SIZE))
  for label, instance in ((0, 9), (3, 5)):
    figure = toys.figure(label, instance)
    for azimuth in _AZIMUTHS:
      turned = raytracing.turn(figure, math.radians(20 * azimuth))
      angles = np.float32(np.radians([30 + 5 * e for e in _ELEVATIONS]))
      seen = np.asarray(render(turned, solids.lights(), angles))
      for e, lamp in itertools.product(range(2), range(6)):
        image = got[label, instance, azimuth, _ELEVATIONS[e], lamp]
        np.testing.assert_allclose(image, 255 * seen[e, lamp], atol=1)
        others = np.delete(seen, e, axis=0)[0, lamp]
        assert abs(image - 255 * others).max() > 20


@pytest.mark.long
def test_same_seed_same_images_in_a_random_order():
  first, kinds = _generated("train"), _kinds(_generated("train"))
  again = _generated.__wrapped__("train")
  jax.tree.map(np.testing.assert_array_equal, first, again)
  other = _generated.__wrapped__("train", seed=1)
  assert _kinds(other) != kinds and sorted(_kinds(other)) == sorted(kinds)
  changed = _by_kind(other)
  same = [np.array_equal(i, changed[k]) for k, i in _by_kind(first).items()]
  assert not any(same)
  # The first ones, which are kept for validation, are of every category.
  assert np.bincount(first.labels[:100], minlength=5).min() > 8


@pytest.mark.long
def test_held_out_figures_are_others(figures):
  train, test = map(_by_kind, map(_generated, ("train", "test")))
  assert not {kind[:2] for kind in train} & {kind[:2] for kind in test}
  shown = {image.tobytes() for image in train.values()}
  assert not any(image.tobytes() in shown for image in test.values())
  # As solids, not by their brightness alone.
  frames = [
    np.concatenate([part.frames.ravel() for part in figure[:3]])
    for figure in figures.values()
  ]
  for one, other in itertools.combinations(frames, 2):
    assert abs(one - other).max() > 0.1


# Category, instance, azimuth, elevation, lighting.
_COARSE = (
  (0, 9, 10, 2, 2), (1, 8, 9, 3, 0), (2, 4, 1, 1, 4), (3, 2, 9, 5, 0),
  (4, 0, 8, 4, 0),
)  # fmt: skip


def _blocks(shine=1.0):
  """Means over 8x8 pixels of some views, in sixteenths."""
  means = []
  for category, instance, azimuth, elevation, lighting in _COARSE:
    figure = toys.figure(category, instance)
    figure = figure._replace(albedo=np.float32(shine * figure.albedo))
    angles = np.float32(np.radians([[20 * azimuth], [30 + 5 * elevation]]))
    views = np.asarray(solids._views(figure, *angles, size=48))
    pixels = views[0, 0, lighting].reshape(6, 8, 6, 8, 2)
    means.append(16 * pixels.mean((1, 3)) / 255)
  return np.stack(means)


def _checksum(blocks):
  return zlib.crc32(np.round(blocks).astype(np.uint8).tobytes())


@pytest.mark.long
def test_other_pictures_are_of_another_version():
  found = _checksum(_blocks())
  assert found == solids._CHECKSUM, (
    "the pictures changed, and files of the old ones would still be read: "
    f"raise _VERSION and set _CHECKSUM to {found}"
  )
  assert _checksum(_blocks(shine=0.95)) != found


def test_the_checksum_is_the_same_on_every_platform():
  off = abs(_blocks() % 1 - 0.5).min()  # from where rounding turns over
  assert off > 0.1, "put views in _COARSE of which no block is so near"


@pytest.mark.long
def test_brightness_does_not_tell_the_category():
  got = _generated("train")
  means = got.images.mean((1, 2, 3))
  order = np.argsort(means)
  for fifth in np.array_split(order, 5):
    assert np.bincount(got.labels[fifth]).max() < 0.55 * len(fifth)


@pytest.mark.long
def test_figures_stand_on_the_ground_within_the_picture(figures):
  trace = jax.jit(raytracing.trace)
  rays = jax.jit(functools.partial(raytracing.stereo_rays, size=24))
  turn = jax.jit(raytracing.turn)
  for figure in figures.values():
    # From below, by a grid of rays that meets no part before the ground.
    grid = np.stack(np.meshgrid(*[np.linspace(-1.4, 1.4, 40)] * 2), -1)
    origins = np.float32(np.insert(grid, 2, -1.0, axis=-1))
    lowest = trace(figure, origins, np.float32([0, 0, 1])).distances.min()
    assert 0.999 < lowest < 1.25
    for azimuth, elevation in ((0.4, 0.53), (1.6, 1.2)):
      eyes, directions = rays(elevation, figure.middle)
      hits = trace(turn(figure, azimuth), eyes, directions).distances
      seen = np.isfinite(hits)
      assert seen.mean() > 0.02
      border = seen.copy()
      border[1:-1, 1:-1] = False
      assert not border.any()


def test_size_and_place_of_a_figure():
  chosen = [
    parts.box((2, 3, 4), (5, 4, 4.5)),
    parts.rod((2, 3, 4), (2, 3, 5), 0.2, taper=3.0),
    parts.ball((5, 4, 4.2), 0.5),
  ]
  # The box around them: x 1.4 to 5.5, y 2.4 to 4.5, z 3.7 to 5.
  figure = parts.assemble(chosen, albedo=0.5)
  scale = 2 / 4.1
  np.testing.assert_allclose(figure.middle, scale * 0.65, rtol=1e-6)
  assert figure.albedo == 0.5
  centre = scale * (np.array([5, 4, 4.2]) - [3.45, 3.45, 3.7])
  local = figure.ellipsoids.frames[0] @ [*centre, 1]
  np.testing.assert_allclose(local, 0, atol=1e-5)
  rim = scale * (np.array([2.6, 3, 5]) - [3.45, 3.45, 3.7])
  x, y, z = figure.cones.frames[0] @ [*rim, 1]
  np.testing.assert_allclose([math.hypot(x, y), z], [3, 1], rtol=1e-5)
  corner = scale * (np.array([5, 4, 4.5]) - [3.45, 3.45, 3.7])
  local = figure.boxes.frames[0] @ [*corner, 1]
  np.testing.assert_allclose(local, 1, rtol=1e-5)


@pytest.mark.parametrize(
  "arguments,message",
  [
    (dict(split="all"), "'all'"),
    (dict(azimuths=(18,)), r"azimuths=\[18\].*0..17"),
    (dict(azimuths=()), "azimuths"),
    (dict(elevations=(-1, 0)), r"elevations=\[-1, 0\].*0..8"),
    (dict(size=0), "size is 0; give"),
  ],
)
def test_wrong_arguments_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    solids.generate(**(dict(split="train") | arguments))


@pytest.mark.parametrize("category,instance", [(5, 0), (-1, 0), (0, -1)])
def test_unknown_figures_are_refused(category, instance):
  with pytest.raises(
    ValueError, match=f"category={category}, inst.*{instance}"
  ):
    toys.figure(category, instance)


def test_too_many_parts_are_refused():
  with pytest.raises(ValueError, match="17 parts of kind 'ellipsoid'.*16"):
    parts.assemble([parts.ball((0, 0, 0), 1.0)] * 17, albedo=1.0)


@pytest.fixture
def rendered(monkeypatch):
  """Stands in for the renderer; lists the splits that it was asked for."""
  asked = []

  def generate(split):
    asked.append(split)
    rng = np.random.default_rng(len(split))
    return data.Dataset(
      rng.integers(0, 256, (30, 48, 48, 2), np.uint8),
      rng.integers(0, 5, 30, np.int32),
      5,
      {f"label_{name}": rng.integers(0, 5, 30, np.int32) for name in _NAMES},
    )

  monkeypatch.setattr(solids, "generate", generate)
  return asked


def _assert_equal(got, expected):
  assert type(got) is data.Dataset
  jax.tree.map(np.testing.assert_array_equal, got, expected)
  assert got.factors.keys() == expected.factors.keys()


def test_a_split_is_rendered_once(tmp_path, rendered, caplog):
  first = data.load("viewpoint_solids", "train", tmp_path)
  (kept,) = (tmp_path / "viewpoint_solids").iterdir()
  assert f"rendering {kept}" in caplog.text
  caplog.clear()
  _assert_equal(data.load("viewpoint_solids", "train", tmp_path), first)
  assert rendered == ["train"] and not caplog.text
  test = data.load("viewpoint_solids", "test", tmp_path)
  assert rendered == ["train", "test"]
  assert not np.array_equal(test.images, first.images)


def test_without_a_folder_nothing_is_kept(
  tmp_path, rendered, caplog, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  for _ in range(2):
    data.load("viewpoint_solids", "test")
  assert rendered == ["test"] * 2
  assert "data_dir" in caplog.text and not list(tmp_path.iterdir())


def test_an_absent_folder_is_refused(tmp_path, rendered):
  with pytest.raises(FileNotFoundError, match="absent.*make it"):
    data.load("viewpoint_solids", "test", tmp_path / "absent")
  assert not rendered


def _flip(content):
  middle = len(content) // 2
  return (
    content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
  )


@pytest.mark.parametrize(
  "damage",
  [
    lambda content: b"",
    lambda content: content[:-1000],
    lambda content: content[: len(content) // 2],
    lambda content: b"<html>404</html>",
    _flip,
  ],
)
def test_a_damaged_file_is_rendered_again(tmp_path, rendered, caplog, damage):
  first = solids.load("train", tmp_path)
  (kept,) = tmp_path.iterdir()
  kept.write_bytes(damage(kept.read_bytes()))
  caplog.clear()
  _assert_equal(solids.load("train", tmp_path), first)
  assert f"{kept} is damaged" in caplog.text
  _assert_equal(solids.load("train", tmp_path), first)
  assert rendered == ["train"] * 2
  assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.parametrize("change", ["images", "label_azimuth"])
def test_a_file_of_other_arrays_is_rendered_again(
  tmp_path, rendered, caplog, change
):
  solids.load("train", tmp_path)
  (kept,) = tmp_path.iterdir()
  with np.load(kept) as file:
    columns = dict(file)
  columns[change] = columns[change][:-1]
  np.savez(kept, **columns)
  solids.load("train", tmp_path)
  assert rendered == ["train"] * 2 and "is damaged" in caplog.text


def test_where_nothing_can_be_written_it_is_still_rendered(
  tmp_path, rendered, caplog
):
  (tmp_path / "file").touch()
  with caplog.at_level(logging.WARNING):
    got = solids.load("train", tmp_path / "file" / "folder")
  assert len(got.images) == 30 and "cannot keep" in caplog.text


def test_a_failed_write_leaves_nothing(tmp_path, rendered, monkeypatch):
  def full(file, **columns):
    file.write(b"half")
    raise OSError("no space left")

  monkeypatch.setattr(np, "savez", full)
  assert len(solids.load("train", tmp_path).images) == 30
  assert not list(tmp_path.iterdir())
