"""Fetches MNIST and Fashion-MNIST from the network, as an explicit step.

Files are verified by the SHA-256 of their uncompressed content, since mirrors
may compress them differently.
"""

import gzip
import hashlib
import http.client
import os
import pathlib
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 30
_ATTEMPTS = 3  # at one mirror, if its connection breaks
# Errors of urllib about the network; none is about the disk.
_NETWORK = (
  urllib.error.URLError,
  http.client.HTTPException,
  ConnectionError,
  TimeoutError,
)


class Published(NamedTuple):
  """The addresses and checksums of the files of a data set.

  Attributes:
    mirrors: Addresses of folders, in the order in which they are tried.
    checksums: SHA-256 of the uncompressed content, by the name of the file.
  """

  mirrors: tuple[str, ...]
  checksums: Mapping[str, str]


SETS = {
  "mnist": Published(
    (
      "https://storage.googleapis.com/cvdf-datasets/mnist",
      "https://ossci-datasets.s3.amazonaws.com/mnist",
    ),
    {
      "train-images-idx3-ubyte.gz": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
      ),
      "train-labels-idx1-ubyte.gz": (
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
      ),
      "t10k-images-idx3-ubyte.gz": (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
      ),
      "t10k-labels-idx1-ubyte.gz": (
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
      ),
    },
  ),
  "fashion_mnist": Published(
    (
      "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
      "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
    ),
    {
      "train-images-idx3-ubyte.gz": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
      ),
      "train-labels-idx1-ubyte.gz": (
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
      ),
      "t10k-images-idx3-ubyte.gz": (
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
      ),
      "t10k-labels-idx1-ubyte.gz": (
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
      ),
    },
  ),
}


class _BrokenError(Exception):
  """A download that ended early."""


def fetch(
  name: str,
  data_dir: str | os.PathLike[str],
  *,
  mirrors: Sequence[str] = (),
  tell: Callable[[str], object] = lambda line: None,
) -> pathlib.Path:
  """Fetches the files of a data set that do not exist yet.

  A file called `NAME` is downloaded as `NAME.part`. The next call resumes a
  download that was interrupted. The file is renamed once it is verified.

  Args:
    name: One of `SETS`.
    data_dir: The folder of all data sets; created if necessary.
    mirrors: Addresses of folders to try before those that are known.
    tell: Called with a line about each file.

  Returns:
    The folder `data_dir/name`, which `load` reads.

  Raises:
    ConnectionError: No mirror gave a file; the message says why, for each.
    OSError: A file cannot be written.
    ValueError: The name is unknown, or a different file with the name of a file
      to fetch exists.
  """
  if name not in SETS:
    raise ValueError(
      f"cannot fetch {name!r}; known are {', '.join(SETS)}. Other data sets of "
      "TensorFlow Datasets are read as --dataset=tfds:NAME"
    )
  folder = pathlib.Path(data_dir).expanduser() / name
  folder.mkdir(parents=True, exist_ok=True)
  addresses = [*mirrors, *SETS[name].mirrors]
  for file, checksum in SETS[name].checksums.items():
    path = folder / file
    found = next((x for x in (path.with_suffix(""), path) if x.exists()), None)
    if found and _checksum(found) != checksum:
      raise ValueError(
        f"{found} exists, but its checksum is not that of the file of {name}; "
        "move it away and fetch again"
      )
    if found:
      tell(f"{found}: exists")
      continue
    source = _fetch_file(path, checksum, addresses)
    tell(f"{path}: {path.stat().st_size} bytes from {source}, verified")
  return folder


def _fetch_file(
  path: pathlib.Path, checksum: str, addresses: Sequence[str]
) -> str:
  """Fetches one file; returns the address that gave it."""
  part = path.with_name(f"{path.name}.part")
  faults = []
  for address in addresses:
    url = f"{address.rstrip('/')}/{path.name}"
    for _ in range(_ATTEMPTS):
      resumed = part.exists() and part.stat().st_size > 0
      try:
        _download(url, part)
      except _BrokenError as error:
        fault = str(error)
        continue
      except _NETWORK as error:
        fault = str(getattr(error, "reason", None) or error)
        break
      if _checksum(part) == checksum:
        os.replace(part, path)
        return address
      part.unlink()
      fault = "the downloaded file has another checksum"
      if not resumed:
        break
    faults.append(f"  {url}: {fault}")
  kept = f"; {part.name} is kept" if part.exists() else ""
  raise ConnectionError(
    "\n".join(
      [
        f"could not fetch {path.name}. Tried:",
        *faults,
        "Run this again where there is a network: it resumes partial downloads"
        f"{kept}. Or copy the file into {path.parent}",
      ]
    )
  )


def _download(url: str, part: pathlib.Path) -> None:
  """Downloads the missing rest of a file, or all if it cannot be resumed."""
  start = part.stat().st_size if part.exists() else 0
  headers = {"Range": f"bytes={start}-"} if start else {}
  request = urllib.request.Request(url, headers=headers)
  try:
    response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
  except urllib.error.HTTPError as error:
    # Either the download is complete, or the file on the server is shorter. The
    # checksum will show which.
    if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
      return
    raise
  with response:
    resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
    if resumes and not _starts_at(response, start):
      raise http.client.HTTPException("it resumed at another byte")
    expected = response.headers.get("Content-Length")
    received = 0
    with part.open("ab" if resumes else "wb") as file:
      while chunk := _read(response):
        file.write(chunk)
        received += len(chunk)
  if expected is not None and received < int(expected):
    raise _BrokenError(f"it sent {received} of {expected} bytes")


def _starts_at(response: http.client.HTTPResponse, start: int) -> bool:
  sent = response.headers.get("Content-Range", "")
  return sent.startswith(f"bytes {start}-")


def _read(response: http.client.HTTPResponse) -> bytes:
  """Reads the next bytes, also the last ones before an early end."""
  try:
    return response.read(_CHUNK)
  except http.client.IncompleteRead as error:
    return error.partial
  except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
    raise _BrokenError(f"the connection broke ({error})") from None


def _checksum(path: pathlib.Path) -> str | None:
  """The SHA-256 of a file's uncompressed content; None if it is damaged."""
  digest = hashlib.sha256()
  compressed = ".gz" in path.suffixes
  try:
    with gzip.open(path) if compressed else path.open("rb") as file:
      while chunk := file.read(_CHUNK):
        digest.update(chunk)
  except (gzip.BadGzipFile, EOFError, zlib.error):
    return None
  return digest.hexdigest()
