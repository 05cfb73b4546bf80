"""Goal: objects at a store and files of an HTTP server read like local files, whatever goes wrong.

Method: the same files read from disk, from moto's S3 and from a small server of ranges, which
throttles, cuts off, stalls, lies and replaces files while they are read.
"""

# ruff: noqa: ANN401 - a location is text or a list of it

import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from ffrecord import ConflictError, CorruptionError, DeadlineExceeded, UnavailableError
from object_store import Store, serve, skip_without_stores
from range_server import RangeServer
from range_server import serve as serve_ranges

COUNT = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files with records of 900 to 40,000 bytes, keys and a column."""
    folder = tmp_path_factory.mktemp("objects")
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


@pytest.fixture(scope="module")
def local(folder: Path) -> ffrecord.Reader:
    """The files on disk."""
    return ffrecord.open(folder)


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    """A bucket with the files in `train/`."""
    import boto3

    for store in serve():
        client = boto3.client("s3", region_name="us-east-1")
        for path in sorted(folder.iterdir()):
            client.upload_file(str(path), "bucket", f"train/{path.name}")
        client.put_object(Bucket="bucket", Key="train/notes.txt", Body=b"no records")
        client.put_object(Bucket="bucket", Key="train/deeper/part-9.ffr", Body=b"")
        yield store


@pytest.fixture
def served(folder: Path) -> Iterator[RangeServer]:
    """The files at an HTTP server."""
    skip_without_stores()
    files = {f"/train/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with serve_ranges(files) as served:
        yield served


def addresses(served: RangeServer) -> list[str]:
    """Of all files."""
    return [served.url(path) for path in sorted(served.files)]


def assert_same(reader: ffrecord.Reader, local: ffrecord.Reader) -> None:
    assert len(reader) == len(local)
    assert reader.fingerprint == local.fingerprint
    wanted = np.random.default_rng(7).permutation(len(local))
    ours, theirs = reader.read(wanted), local.read(wanted)
    assert all(bytes(a["data"]) == bytes(b["data"]) for a, b in zip(ours, theirs, strict=True))
    np.testing.assert_array_equal(reader.column("label"), local.column("label"))
    assert reader.find("key-123") == local.find("key-123")


# --- What an address stands for ------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        "s3://bucket/train/",
        "s3://bucket/train",
        "s3://bucket/train/part-*.ffr",
        "s3://bucket/tr*/part-[0-2].ffr",
        [f"s3://bucket/train/part-{number}.ffr" for number in range(3)],
    ],
)
def test_objects_read_like_files(store: Store, local: ffrecord.Reader, where: Any) -> None:
    assert_same(ffrecord.open(where), local)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("s3://bucket/none.ffr", FileNotFoundError),
        ("s3://bucket/none", FileNotFoundError),
        ("s3://bucket/x*", FileNotFoundError),
        ("s3://nobody/x.ffr", FileNotFoundError),
        ("s3://", ValueError),
        ("s3:///x", ValueError),
        ("s3://bucket/train/notes.txt", CorruptionError),
        (["s3://bucket/train/part-0.ffr", "/tmp/x.ffr"], ValueError),
    ],
)
def test_what_is_not_there_is_named(store: Store, where: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"bucket|S3|s3|address"):
        len(ffrecord.open(where))


def test_a_bucket_that_throttles_and_hangs_up_is_asked_again(
    store: Store, local: ffrecord.Reader
) -> None:
    faults = {2: "503", 3: "503", 5: "hang up", 8: "503", 11: "lose", 12: "hang up"}
    store.set_door(lambda number, method, path: faults.get(number, "serve"))
    assert_same(ffrecord.open("s3://bucket/train/"), local)
    store.serve_all()


def test_files_of_an_http_server_read_like_local_ones(
    served: RangeServer, local: ffrecord.Reader
) -> None:
    assert_same(ffrecord.open(addresses(served)), local)


def test_neighbours_are_read_together(served: RangeServer) -> None:
    reader = ffrecord.open(addresses(served))
    len(reader)
    reader.read(range(COUNT))
    before = len(served.seen)
    reader.read(range(COUNT))
    assert len(served.seen) - before <= 6


def test_a_loader_reads_a_store_and_resumes(store: Store, local: ffrecord.Reader) -> None:
    pytest.importorskip("torch")
    from ffrecord.torch import DataLoader, Dataset, Sampler

    def labels(where: Any, state: dict[str, Any] | None, stop: int | None, mode: str) -> Any:
        dataset = Dataset(where, transform=lambda sample: sample["label"])
        sampler = Sampler(dataset, global_batch=32, seed=3, rank=0, world_size=1)
        loader: Any = DataLoader(dataset, batch_sampler=sampler, mode=mode, num_workers=2)
        if state is not None:
            loader.load_state_dict(state)
        seen = []
        for batch in loader:
            seen.append(list(map(int, batch)))
            if len(seen) == stop:
                return seen, loader.state_dict()
        return seen, None

    wanted, _ = labels(local.where, None, None, "threads")
    for mode in ("threads", "workers"):
        first, state = labels("s3://bucket/train/", None, 4, mode)
        rest, _ = labels("s3://bucket/train/", state, None, mode)
        assert first + rest == wanted


# --- Faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [500, 502, 503, 429, 408, "cut", "reset"])
def test_a_fault_that_passes_costs_time_alone(
    served: RangeServer, local: ffrecord.Reader, fault: str | int
) -> None:
    served.fault = lambda number, path: fault if number % 3 == 1 else None
    assert_same(ffrecord.open(addresses(served)), local)


@pytest.mark.parametrize("fault", ["stall", "silent", "dribble"])
def test_an_answer_that_is_late_is_asked_for_again(
    served: RangeServer, local: ffrecord.Reader, fault: str
) -> None:
    reader = ffrecord.open(addresses(served), timeout_s=8)
    for i in range(0, COUNT, 10):
        reader.read([i])  # What is usual is known.
    before = len(served.seen)
    served.fault = lambda number, path: fault if number == before + 3 else None
    begin = time.monotonic()
    assert_same(reader, local)
    assert time.monotonic() - begin < 7


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (503, UnavailableError, "503"),
        ("reset", UnavailableError, "part-"),
        ("silent", DeadlineExceeded, "sent nothing"),
        (403, PermissionError, "403"),
        (404, FileNotFoundError, "404"),
        ("whole", ValueError, "does not support range requests"),
        ("shifted", ValueError, "instead of"),
    ],
)
def test_a_fault_that_stays_is_told(
    served: RangeServer, fault: str | int, error: type[Exception], text: str
) -> None:
    reader = ffrecord.open(addresses(served), timeout_s=2)
    reader.read([5])  # Its index page is there.
    served.fault = lambda number, path: fault
    begin = time.monotonic()
    with pytest.raises(error, match=text):
        reader.read([5])
    assert time.monotonic() - begin < 6
    served.fault = lambda number, path: None
    assert len(reader.read([5])) == 1


def test_a_server_without_ranges_is_refused_at_the_start(served: RangeServer) -> None:
    served.fault = lambda number, path: "whole"
    with pytest.raises(ValueError, match="range requests"):
        len(ffrecord.open(addresses(served)[0]))


def test_encoded_content_is_refused(served: RangeServer) -> None:
    served.headers = {"Content-Encoding": "gzip"}
    with pytest.raises(ValueError, match="encodes"):
        len(ffrecord.open(addresses(served)[0]))


def test_a_server_that_asks_for_a_pause_gets_it(served: RangeServer) -> None:
    reader = ffrecord.open(addresses(served))
    len(reader)
    before = len(served.seen)
    served.headers = {"Retry-After": "1"}
    served.fault = lambda number, path: 503 if number == before + 1 else None
    begin = time.monotonic()
    reader.read([5])
    assert time.monotonic() - begin >= 1


@pytest.mark.parametrize("is_tagged", [True, False])
def test_a_replaced_file_is_no_damage_but_a_conflict(served: RangeServer, is_tagged: bool) -> None:
    if not is_tagged:
        served.fault = lambda number, path: "untagged"
    reader = ffrecord.open(addresses(served)[0])
    reader.read([5])
    path = sorted(served.files)[0]
    served.files[path] = served.files[path] + b"more" if not is_tagged else os.urandom(10**6)
    for policy in ("raise", "skip", "replace"):
        with pytest.raises(ConflictError, match="was replaced since it was opened"):
            reader.read([7], on_corrupt=policy)


def test_damage_at_the_store_follows_the_policy(
    served: RangeServer, local: ffrecord.Reader
) -> None:
    path = sorted(served.files)[0]
    data = bytearray(served.files[path])
    place = data.find(bytes(local[3]["data"])[:64])
    data[place] ^= 1
    served.files[path] = bytes(data)
    reader = ffrecord.open(addresses(served))
    assert len(reader.read(range(10), on_corrupt="skip")) == 9
    assert list(reader.stats()["damaged"]) == [3]
    with pytest.raises(CorruptionError, match=r"part-0\.ffr: record 3"):
        reader.read([3])


def test_redirections_are_followed_and_secrets_are_not_shown(served: RangeServer) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        len(ffrecord.open(served.url("/none.ffr?X-Amz-Signature=secret")))
    assert "secret" not in str(caught.value)
    assert "/none.ffr" in str(caught.value)


def test_a_cut_object_is_damaged_and_says_so(served: RangeServer) -> None:
    path = sorted(served.files)[0]
    served.files[path] = served.files[path][:50_000]
    with pytest.raises(CorruptionError, match=r"part-0\.ffr"):
        len(ffrecord.open(served.url(path)))
    served.files[path] = b""
    with pytest.raises((CorruptionError, ValueError), match=r"part-0\.ffr"):
        len(ffrecord.open(served.url(path)))


# --- Processes -----------------------------------------------------------------------------------


def _read_in_child(reader: ffrecord.Reader, pipe: Any) -> None:
    pipe.send([int(sample["label"]) for sample in reader.read([1, 150, 299])])
    pipe.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_reads_on_and_so_does_its_parent(served: RangeServer, method: str) -> None:
    reader = ffrecord.open(addresses(served))
    reader.read([0, 100, 200])
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_read_in_child, args=(reader, theirs))
    child.start()
    theirs.close()
    assert ours.recv() == [1, 150, 299]
    child.join()
    assert child.exitcode == 0
    assert [int(sample["label"]) for sample in reader.read([2, 151])] == [2, 151]


def test_a_pickle_holds_the_addresses_alone(store: Store, local: ffrecord.Reader) -> None:
    reader = ffrecord.open("s3://bucket/train/")
    len(reader)
    text = pickle.dumps(reader)
    assert len(text) < 1024
    assert_same(pickle.loads(text), local)


def test_verify_reads_every_record(store: Store) -> None:
    (report,) = ffrecord.verify("s3://bucket/train/")
    assert (report.record_count, report.problem_count) == (COUNT, 0)
