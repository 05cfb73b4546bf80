"""What tests of objects share: three files on disk, at moto's S3 and at a server of ranges."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ffrecord
from eventually import eventually
from ffrecord import DeadlineExceeded, UnavailableError
from object_store import Store, serve
from range_server import RangeServer
from range_server import serve as serve_ranges

COUNT = 300


def three_files(folder: Path) -> Path:
    """Writes three files with records of 900 to 40,000 bytes, keys and a column."""
    chance = np.random.default_rng(5)
    for number in range(3):
        with ffrecord.Writer(
            folder / f"part-{number}.ffr", schema={"label": "i64", "data": "bytes"}, key=True
        ) as writer:
            for i in range(COUNT // 3):
                label = number * COUNT // 3 + i
                data = chance.bytes(int(chance.integers(900, 40_000)))
                writer.write({"label": label, "data": data}, key=f"key-{label}")
    return folder


def at_a_store(folder: Path) -> Iterator[Store]:
    """A bucket with the files in `train/`."""
    import boto3

    for store in serve():
        client = boto3.client("s3", region_name="us-east-1")
        for path in sorted(folder.iterdir()):
            client.upload_file(str(path), "bucket", f"train/{path.name}")
        client.put_object(Bucket="bucket", Key="train/notes.txt", Body=b"no records")
        client.put_object(Bucket="bucket", Key="train/deeper/part-9.ffr", Body=b"")
        yield store


def read_again(reader: ffrecord.Reader, indices: list[int]) -> ffrecord.Batch:
    """What the reader reads once its store works again.

    For half a second after a range could not be read in time, a single range fails at once.
    """

    def read() -> ffrecord.Batch | None:
        with contextlib.suppress(DeadlineExceeded, UnavailableError):
            return reader.read(indices)
        return None

    batch = eventually(read)
    assert batch is not None
    return batch


def skip_without_http() -> None:
    """Skips if this build has no stores."""
    try:
        len(ffrecord.open("http://127.0.0.1:1/x.ffr", timeout_s=0.1))
    except ValueError as error:
        pytest.skip(str(error))
    except UnavailableError:
        pass


def at_a_server(folder: Path) -> Iterator[RangeServer]:
    """The files at an HTTP server."""
    skip_without_http()
    files = {f"/train/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with serve_ranges(files) as served:
        yield served


def addresses(served: RangeServer) -> list[str]:
    """The addresses of all files."""
    return [served.url(path) for path in sorted(served.files)]


def assert_same(reader: ffrecord.Reader, local: ffrecord.Reader) -> None:
    assert len(reader) == len(local)
    assert reader.fingerprint == local.fingerprint
    wanted = np.random.default_rng(7).permutation(len(local))
    ours, theirs = reader.read(wanted), local.read(wanted)
    assert all(bytes(a["data"]) == bytes(b["data"]) for a, b in zip(ours, theirs, strict=True))
    np.testing.assert_array_equal(reader.column("label"), local.column("label"))
    assert reader.find("key-123") == local.find("key-123")
