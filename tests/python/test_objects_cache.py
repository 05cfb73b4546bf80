"""Goal: a cache of objects saves requests, and never changes what is read.

Method: files of a server of ranges are read twice, while they are replaced and the cache is
damaged or deleted.
"""

import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ffrecord
from eventually import eventually
from ffrecord import CorruptionError
from files_at_a_store import COUNT, addresses, assert_same, at_a_server, three_files
from range_server import RangeServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_files(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def local(folder: Path) -> ffrecord.Reader:
    return ffrecord.open(folder)


@pytest.fixture
def served(folder: Path) -> Iterator[RangeServer]:
    yield from at_a_server(folder)


def _fetched(served: RangeServer) -> int:
    """Requests since the last call that were no probes of versions."""
    count = sum(asked != "bytes=0-0" for _, asked in served.seen)
    served.seen.clear()
    return count


def test_a_second_epoch_comes_from_the_cache(
    served: RangeServer, local: ffrecord.Reader, tmp_path: Path
) -> None:
    reader = ffrecord.open(addresses(served), cache=tmp_path / "cache")
    assert_same(reader, local)
    assert _fetched(served) > 0
    assert_same(reader, local)
    assert_same(pickle.loads(pickle.dumps(reader)), local)
    assert _fetched(served) == 0


def test_a_replaced_object_is_not_taken_from_the_cache(
    served: RangeServer, local: ffrecord.Reader, tmp_path: Path
) -> None:
    first, second, *_ = sorted(served.files)
    assert bytes(ffrecord.open(served.url(first), cache=tmp_path)[3]["data"]) == bytes(
        local[3]["data"]
    )
    served.files[first] = served.files[second]
    reader = ffrecord.open(served.url(first), cache=tmp_path)
    assert reader[3]["label"] == COUNT // 3 + 3
    data = bytearray(served.files[first])  # Of the same size, but damaged: that is the truth.
    data[data.find(bytes(reader[3]["data"])[:64])] ^= 1
    served.files[first] = bytes(data)
    with pytest.raises(CorruptionError):
        ffrecord.open(served.url(first), cache=tmp_path).read([3])


def test_a_warm_cache_is_read_as_a_local_file_is(
    served: RangeServer, local: ffrecord.Reader, tmp_path: Path
) -> None:
    assert_same(ffrecord.open(addresses(served), cache=tmp_path), local)
    reader = ffrecord.open(addresses(served), cache=tmp_path)
    reader.read([0])
    before = reader.stats()
    for _ in range(3):
        reader.read(range(COUNT))
    assert reader.stats()["batches_from_memory"] == before["batches_from_memory"] + 3


@pytest.mark.parametrize("check_data", [True, False])
def test_what_happens_to_a_cache_changes_no_record(
    served: RangeServer, local: ffrecord.Reader, tmp_path: Path, check_data: bool
) -> None:
    cache = tmp_path / "cache"
    reader = ffrecord.open(addresses(served), cache=cache, check_data=check_data)
    assert_same(reader, local)
    entries = sorted(cache.rglob("*.blocks"))
    assert len(entries) == 3
    for entry in entries:
        data = bytearray(entry.read_bytes())
        data[5000::10_000] = os.urandom(len(data[5000::10_000]))
        entry.write_bytes(data)
    assert_same(reader, local)
    shutil.rmtree(cache)
    assert_same(reader, local)
    # It looks at its folder once a second.
    eventually(lambda: len(reader.read([0, 150])) and list(cache.rglob("*.blocks")))
    assert_same(reader, local)


def test_a_cache_needs_a_store_and_a_place(
    served: RangeServer, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="cache is for objects"):
        len(ffrecord.open(folder, cache=tmp_path))
    with pytest.raises(ValueError, match="64 MiB"):
        ffrecord.open(addresses(served), cache=tmp_path, cache_size=1 << 20)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="cache"):
        len(ffrecord.open(addresses(served), cache=tmp_path / "file"))
    served.fault = lambda number, path: "untagged"
    with pytest.raises(ValueError, match="ETag or Last-Modified"):
        len(ffrecord.open(addresses(served), cache=tmp_path))
