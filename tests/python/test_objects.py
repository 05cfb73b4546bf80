"""Goal: objects at a store and files of an HTTP server read like local files.

Method: the same files read from disk, from moto's S3 and from a small server of ranges, by every
form of address, by loaders, and in child processes.
"""

# ruff: noqa: ANN401 - a location is text or a list of it

import multiprocessing
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from ffrecord import CorruptionError
from files_at_a_store import COUNT, addresses, assert_same, at_a_server, at_a_store, three_files
from object_store import Store
from range_server import RangeServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_files(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def local(folder: Path) -> ffrecord.Reader:
    return ffrecord.open(folder)


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    yield from at_a_store(folder)


@pytest.fixture
def served(folder: Path) -> Iterator[RangeServer]:
    yield from at_a_server(folder)


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
        ("nonsense://bucket/x.ffr", ValueError),
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
