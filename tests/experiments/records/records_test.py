"""Which records are taken."""

import json

import pytest
from report_cases import make_record, rows_of

from experiments.records import records as archive


def test_files_are_read_by_name(tmp_path):
  for name in ("b", "a"):
    text = json.dumps(make_record(command=name)) + "\n"
    (tmp_path / f"{name}.jsonl").write_text(text)
  (tmp_path / "notes.txt").write_text("not a record")
  records = archive.read(tmp_path)
  assert [record["command"] for record in records] == ["a", "b"]


def test_old_names_of_metrics_are_mapped_to_new_ones(tmp_path):
  old = {"elbo_error": 1, "log_partition_at_least": 2, "other_error": 3}
  old |= {"log_partition_at_most": 4, "bound_10_error": 5}
  (tmp_path / "runs.jsonl").write_text(json.dumps(make_record(metrics=old)))
  (record,) = archive.read(tmp_path)
  new = {"elbo_standard_error": 1, "mean_log_weight": 2, "other_error": 3}
  new |= {"mean_log_weight_backwards": 4, "bound_10_standard_error": 5}
  assert record["metrics"] == new


def _read(tmp_path, **fields):
  (tmp_path / "runs.jsonl").write_text(json.dumps(make_record(**fields)))
  return archive.read(tmp_path)[0]


def test_a_share_of_pixels_is_no_share_of_images(tmp_path):
  old = {"multimnist_accuracy": 0.5}
  fields = {"metrics": old, "num_images": {"multimnist_accuracy": 7}}
  assert _read(tmp_path, **fields)["metrics"] == old
  record = _read(tmp_path, experiment="train_slots", **fields)
  assert record["metrics"] == {"multimnist_pixel_accuracy": 0.5}
  assert record["num_images"] == {"multimnist_pixel_accuracy": 7}


def test_numbers_of_images_of_older_records_are_mended(tmp_path):
  metrics = {
    "segmentation_accuracy": 0.9,
    "segmentation_several_accuracy": 0.8,
    "segmentation_several_num_images": 4,
    "log_partition_standard_error": 0.1,
  }
  counts = dict.fromkeys(metrics, 9)
  record = _read(tmp_path, metrics=metrics, num_images=counts)
  assert list(record["num_images"].values()) == [9, 4, 4, 0]


def test_older_affine_views_do_not_count_their_clean_images(tmp_path):
  metrics = {"clean_accuracy": 0.9, "num_images": 2500}
  record = _read(tmp_path, suite="affnist_like", metrics=metrics)
  assert record["num_images"] == {"clean_accuracy": 0}
  counts = {"clean_accuracy": 2500}
  record = _read(
    tmp_path, suite="affnist_like", metrics=metrics, num_images=counts
  )
  assert record["num_images"] == counts


def test_a_record_older_than_a_flag_says_what_its_code_did(tmp_path):
  old, new = make_record(0, 0.4), make_record(1, 0.2)
  other = make_record(0, 0.3, flags={"model": "baseline"})
  for record in (old, other):
    del record["flags"]["primary_scale"]
  lines = [json.dumps(record) for record in (old, new, other)]
  (tmp_path / "runs.jsonl").write_text("\n".join(lines))
  read = archive.read(tmp_path)
  scales = [record["flags"].get("primary_scale", "-") for record in read]
  assert scales == [1.0, None, "-"]
  # Alone it says so too, and its command makes it again.
  (row,) = rows_of(read[:1])[1:]
  assert row[2] == "mnist_paper `primary_scale=1.0`"
  assert read[0]["command"].endswith(" --primary_scale=1.0")
  names = [row[2] for row in rows_of(read[:2])[1:]]
  assert names == ["mnist_paper", "mnist_paper `primary_scale=1.0`"]


@pytest.mark.parametrize(
  "line, fault",
  [
    ("{", "Expecting property name"),
    ("", "Expecting value"),
    ("[1]", "expected an object"),
    (
      json.dumps(make_record(seed="0")),
      "`seed` is '0', expected <class 'int'>",
    ),
    (json.dumps(make_record(seconds=None)), "`seconds` is None"),
    (json.dumps(make_record(error=float("nan"))), "test_error_percent"),
    (json.dumps(make_record(error="low")), "test_error_percent"),
    ("{}", "`experiment` is None"),
    (json.dumps(make_record(dirty=True)), "`dirty` is True, expected false"),
    (json.dumps(make_record(dirty=None)), "`dirty` is None, expected false"),
    (json.dumps(make_record(dirty_at_end=True)), "`dirty_at_end` is True"),
    (json.dumps(make_record(training_dirty=None)), "`training_dirty` is None"),
    (
      json.dumps(
        make_record(resumptions=[{"commit": "a" * 40, "dirty": True}])
      ),
      "`dirty` is True, expected false",
    ),
    (
      json.dumps(make_record(commit="unknown")),
      "`commit` is 'unknown', expected",
    ),
    (json.dumps(make_record(commit=None)), "`commit` is None, expected"),
    (json.dumps(make_record(training_commit="")), "`training_commit` is ''"),
    (json.dumps(make_record(versions=None)), "`versions` is None"),
  ],
)
def test_malformed_line(tmp_path, line, fault):
  good = json.dumps(make_record())
  (tmp_path / "runs.jsonl").write_text(f"{good}\n{line}\n{good}\n")
  with pytest.raises(ValueError, match="runs.jsonl, line 2: ") as caught:
    archive.read(tmp_path)
  assert fault in str(caught.value)


def test_missing_folder(tmp_path):
  with pytest.raises(ValueError, match="no folder"):
    archive.read(tmp_path / "results")
