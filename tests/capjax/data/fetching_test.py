"""Fetching, from a server on this machine that can misbehave."""

import contextlib
import gzip
import hashlib
import http.server
import socket
import threading

import numpy as np
import pytest

from capjax import data
from capjax.data import fetching

CONTENT = np.random.default_rng(0).bytes(700_000)
PACKED = gzip.compress(CONTENT, 1, mtime=0)  # the same bytes in every process
FILE = "train-images-idx3-ubyte.gz"


class Server(http.server.ThreadingHTTPServer):
  """Serves `content` under every name, and counts what was asked."""

  def __init__(self, content=PACKED, *, ranges=True, cuts=(), shift=0):
    self.content, self.ranges, self.shift = content, ranges, shift
    self.cuts = list(cuts)  # bytes after which the next answers are cut off
    self.asked = []
    super().__init__(("127.0.0.1", 0), Handler)

  @property
  def address(self):
    return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    server = self.server
    wanted = self.headers.get("Range")
    server.asked.append((self.path, wanted))
    start = 0
    if wanted and server.ranges:
      start = int(wanted.removeprefix("bytes=").removesuffix("-"))
      if start >= len(server.content):
        self.send_error(416)
        return
      self.send_response(206)
      first = start + server.shift
      last = len(server.content) - 1
      self.send_header("Content-Range", f"bytes {first}-{last}/{last + 1}")
    else:
      self.send_response(200)
    rest = server.content[start:]
    self.send_header("Content-Length", str(len(rest)))
    self.end_headers()
    cut = server.cuts.pop(0) if server.cuts else None
    self.wfile.write(rest[:cut])

  def log_message(self, *arguments):
    pass


@contextlib.contextmanager
def serving(*arguments, **options):
  with Server(*arguments, **options) as server:
    thread = threading.Thread(
      target=server.serve_forever, args=(0.01,), daemon=True
    )
    thread.start()
    yield server
    server.shutdown()


@pytest.fixture
def fetch(tmp_path, monkeypatch):
  """Fetches a set of one small file from servers."""
  checksum = hashlib.sha256(CONTENT).hexdigest()

  def run(*servers, **options):
    addresses = tuple(
      x.address if isinstance(x, Server) else x for x in servers
    )
    small = fetching.Published(addresses, {FILE: checksum})
    monkeypatch.setattr(fetching, "SETS", {"small": small})
    return fetching.fetch("small", tmp_path / "data", **options) / FILE

  run.folder = tmp_path / "data" / "small"
  run.part = run.folder / f"{FILE}.part"
  return run


def unused_address():
  with socket.socket() as some:
    some.bind(("127.0.0.1", 0))
    return f"http://127.0.0.1:{some.getsockname()[1]}"


def test_a_file_is_fetched_once(fetch):
  lines = []
  with serving() as server:
    path = fetch(server, tell=lines.append)
    assert path.read_bytes() == PACKED
    assert not fetch.part.exists()
    fetch(server, tell=lines.append)
    assert server.asked == [(f"/{FILE}", None)]
  assert "verified" in lines[0] and server.address in lines[0]
  assert "exists" in lines[1]


def test_a_mirror_may_have_compressed_the_file_anew(fetch):
  with serving(gzip.compress(CONTENT, 9)) as server:
    assert gzip.decompress(fetch(server).read_bytes()) == CONTENT


def test_an_interrupted_download_is_resumed(fetch):
  fetch.folder.mkdir(parents=True)
  fetch.part.write_bytes(PACKED[:1234])
  with serving() as server:
    assert fetch(server).read_bytes() == PACKED
    assert server.asked == [(f"/{FILE}", "bytes=1234-")]


def test_a_cut_connection_is_resumed_at_once(fetch):
  with serving(cuts=[300_000, 5]) as server:
    assert fetch(server).read_bytes() == PACKED
    assert [x for _, x in server.asked] == [
      None, "bytes=300000-", "bytes=300005-"
    ]  # fmt: skip


def test_after_many_cuts_the_next_mirror_goes_on(fetch):
  with serving(cuts=[10, 10, 10]) as bad, serving() as good:
    assert fetch(bad, good).read_bytes() == PACKED
    assert [x for _, x in good.asked] == ["bytes=30-"]


def test_a_server_without_ranges_starts_again(fetch):
  fetch.folder.mkdir(parents=True)
  fetch.part.write_bytes(PACKED[:1234])
  with serving(ranges=False) as server:
    assert fetch(server).read_bytes() == PACKED


def test_a_server_that_resumes_elsewhere_is_left(fetch):
  fetch.folder.mkdir(parents=True)
  fetch.part.write_bytes(PACKED[:1234])
  with serving(shift=1) as bad, serving() as good:
    assert fetch(bad, good).read_bytes() == PACKED
    assert len(bad.asked) == 1


@pytest.mark.parametrize("size", [1234, len(PACKED), len(PACKED) + 9])
def test_a_wrong_beginning_is_thrown_away(fetch, size):
  fetch.folder.mkdir(parents=True)
  fetch.part.write_bytes(bytes(size))
  with serving() as server:
    assert fetch(server).read_bytes() == PACKED
    assert [x for _, x in server.asked] == [f"bytes={size}-", None]


def test_a_whole_part_is_taken(fetch):
  """Of a process that was killed before it could rename the file."""
  fetch.folder.mkdir(parents=True)
  fetch.part.write_bytes(PACKED)
  with serving() as server:
    assert fetch(server).read_bytes() == PACKED


@pytest.mark.parametrize(
  "content",
  [
    pytest.param(b"<html>", id="page"),
    pytest.param(gzip.compress(b"other", mtime=0), id="other"),
    pytest.param(PACKED[:-9], id="shorter"),
    pytest.param(b"", id="empty"),
  ],
)
@pytest.mark.long_after_first
def test_what_has_another_checksum_is_not_kept(fetch, content):
  with serving(content) as bad:
    with pytest.raises(ConnectionError) as caught:
      fetch(bad)
    fault = f"{bad.address}/{FILE}: the downloaded file has another checksum"
    assert fault in str(caught.value)
    assert list(fetch.folder.iterdir()) == []
    with serving() as good:
      assert fetch(bad, good).read_bytes() == PACKED


def test_without_a_network_every_address_is_named(fetch):
  first, second = unused_address(), unused_address()
  with pytest.raises(ConnectionError) as caught:
    fetch(first, second)
  for word in (first, second, "refused", "where there is a network"):
    assert word in str(caught.value)


def test_what_came_before_the_network_went_is_kept(fetch):
  with serving(cuts=[10, 10, 10]) as server:
    with pytest.raises(ConnectionError, match=r"\.part is kept"):
      fetch(server)
  assert fetch.part.read_bytes() == PACKED[:30]


def test_a_given_mirror_comes_first(fetch):
  with serving() as known, serving() as given:
    fetch(known, mirrors=[given.address + "/folder/"])
    assert known.asked == []
    assert given.asked == [(f"/folder/{FILE}", None)]


def test_a_file_of_that_name_is_not_overwritten(fetch):
  fetch.folder.mkdir(parents=True)
  (fetch.folder / FILE).write_bytes(gzip.compress(b"mine"))
  with serving() as server:
    with pytest.raises(ValueError, match="move it away"):
      fetch(server)
    assert server.asked == []
  (fetch.folder / FILE).unlink()
  plain = fetch.folder / FILE.removesuffix(".gz")
  plain.write_bytes(CONTENT)  # uncompressed, as others distribute it
  with serving() as server:
    fetch(server)
    assert server.asked == []


def test_unknown_sets_are_refused(tmp_path):
  with pytest.raises(ValueError, match="mnist, fashion_mnist"):
    fetching.fetch("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_checksums_are_those_of_the_real_files(
  data_dir, tmp_path, monkeypatch, name
):
  if not (data_dir / name).is_dir():
    pytest.skip(f"no {name} in {data_dir}")
  served = {path.name: path for path in (data_dir / name).iterdir()}

  def download(url, part):
    part.write_bytes(served[url.rpartition("/")[2]].read_bytes())

  monkeypatch.setattr(fetching, "_download", download)
  fetching.fetch(name, tmp_path)
  got, want = (data.load(name, "test", x) for x in (tmp_path, data_dir))
  assert data.fingerprint(got) == data.fingerprint(want)
