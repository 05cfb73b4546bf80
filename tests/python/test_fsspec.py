"""Goal: files at any store of fsspec read like local files: order, views, loaders, processes.

Method: the same files read from disk and through file systems of fsspec, with and without an event
loop, in memory, over HTTP, in an archive and through fsspec's own cache.
"""

# ruff: noqa: ANN401 - a location is text or a list of it

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner

import ffrecord
from eventually import eventually
from ffrecord import CorruptionError
from ffrecord._cli.main import cli
from file_systems import Shelf, filled
from files_at_a_store import COUNT, addresses, assert_same, at_a_server, three_files
from range_server import RangeServer

PROTOCOLS = ["shelf", "ashelf"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def local(folder: Path) -> ffrecord.Reader:
    return ffrecord.open(folder)


@pytest.fixture
def shelf(folder: Path) -> Iterator[Shelf]:
    files = {f"train/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with filled({**files, "train/notes.txt": b"no records", "train/deeper/x.ffr": b""}) as full:
        yield full


@pytest.fixture
def served(folder: Path) -> Iterator[RangeServer]:
    yield from at_a_server(folder)


# --- What an address stands for ------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "where",
    [
        "train/",
        "train",
        "train/part-*.ffr",
        "tr*/part-[0-2].ffr",
        [f"train/part-{number}.ffr" for number in range(3)],
    ],
)
def test_a_file_system_reads_like_files(
    shelf: Shelf, local: ffrecord.Reader, protocol: str, where: Any
) -> None:
    names = [where] if isinstance(where, str) else where
    reader = ffrecord.open([f"{protocol}://{name}" for name in names])
    assert_same(reader, local)
    assert not reader.is_local
    assert [file.name for file in reader.files] == [
        f"{protocol}://train/part-{number}.ffr" for number in range(3)
    ]


@pytest.fixture
def memory(folder: Path) -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    for path in folder.iterdir():
        system.pipe(f"/fsspec-test/{path.name}", path.read_bytes())
    yield system
    system.rm("/fsspec-test", recursive=True)


@pytest.mark.parametrize("chain", ["simplecache", "filecache"])
def test_a_chain_of_file_systems_is_read(
    memory: Any, local: ffrecord.Reader, chain: str, tmp_path: Path
) -> None:
    where = [f"{chain}::memory://fsspec-test/part-{number}.ffr" for number in range(3)]
    options = {chain: {"cache_storage": str(tmp_path)}}
    assert_same(ffrecord.open(where, storage_options=options), local)
    reader = ffrecord.open(f"{chain}::memory://fsspec-test/part-*.ffr", storage_options=options)
    assert_same(reader, local)
    assert_same(reader, local)


def test_files_of_several_file_systems_are_one_list(
    memory: Any, shelf: Shelf, local: ffrecord.Reader
) -> None:
    where = [
        "shelf://train/part-0.ffr",
        "memory://fsspec-test/part-1.ffr",
        "ashelf://train/part-2.ffr",
    ]
    assert_same(ffrecord.open(where), local)


def test_files_in_an_archive_are_read(folder: Path, local: ffrecord.Reader, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    assert_same(ffrecord.open(f"zip://part-*.ffr::file://{tmp_path}/train.zip"), local)


def test_options_go_to_the_file_system_and_take_stores_there(
    shelf: Shelf, served: RangeServer, local: ffrecord.Reader
) -> None:
    reader = ffrecord.open("shelf://train/", storage_options={"token": "abc"})
    assert_same(reader, local)
    assert shelf.options[0]["token"] == "abc"
    assert reader.options["storage_options"] == {"token": "abc"}
    assert "abc" not in repr(reader)
    assert_same(ffrecord.open(addresses(served), storage_options={}), local)
    assert_same(pickle.loads(pickle.dumps(reader)), local)


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        ("shelf://none.ffr", FileNotFoundError, "shelf://none.ffr"),
        ("ashelf://none/", FileNotFoundError, "ashelf://none/"),
        ("shelf://train/x*.ffr", FileNotFoundError, r"no file matches shelf://train/x\*"),
        ("shelf://train/deeper/none", FileNotFoundError, "none"),
        ("shelf://train/notes.txt", (CorruptionError, ValueError), "notes.txt"),
        ("nonsense://x.ffr", ValueError, "nonsense://x.ffr: unknown kind of address.*s3://"),
        ("gs://bucket/x.ffr", ImportError, "gcsfs"),
        (["shelf://train/part-0.ffr", "/tmp/x.ffr"], ValueError, "one kind"),
        (["shelf://train/part-0.ffr", "s3://bucket/x.ffr"], ValueError, "one kind"),
        ("sftp://me:secret@127.0.0.1:1/x", (ImportError, OSError), "sftp://127.0.0.1:1/x"),
    ],
)
def test_what_is_not_there_is_named(shelf: Shelf, where: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        len(ffrecord.open(where, timeout_s=2))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("where", ["/tmp/x.ffr", "ffrecord://localhost/x"])
def test_options_for_what_fsspec_does_not_read_are_refused(where: str) -> None:
    with pytest.raises(ValueError, match="storage_options"):
        ffrecord.open(where, storage_options={"token": "abc"})


def test_a_missing_package_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"pip install 'ffrecord\[fsspec\]'"):
        len(ffrecord.open("gs://bucket/x.ffr"))


def test_fsspec_is_imported_only_for_its_stores(folder: Path) -> None:
    code = (
        "import sys, ffrecord; ffrecord.open(sys.argv[1]).read([0]); "
        "sys.exit('fsspec' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)


def test_verify_and_doctor_read_through_a_file_system(shelf: Shelf) -> None:
    (report,) = ffrecord.verify("shelf://train/")
    assert (report.record_count, report.problem_count) == (COUNT, 0)
    done = CliRunner().invoke(cli, ["doctor", "ashelf://train/", "--json"])
    assert done.exit_code == 0, done.output
    assert '"store_records": 300' in done.output


# --- How ranges are read -------------------------------------------------------------------------


@pytest.mark.parametrize(("protocol", "in_a_call_max"), [("shelf", 4), ("ashelf", 32)])
def test_ranges_of_a_batch_are_merged_and_go_in_few_calls(
    shelf: Shelf, protocol: str, in_a_call_max: int
) -> None:
    reader = ffrecord.open(f"{protocol}://train/")
    reader.read(range(COUNT))
    shelf.reads.clear()
    shelf.calls.clear()
    reader.read(range(COUNT))
    assert len(shelf.reads) <= 6  # Neighbours are one range.
    shelf.reads.clear()
    shelf.calls.clear()
    reader.read(range(0, COUNT, 17))
    assert sum(shelf.calls) == len(shelf.reads)
    assert max(shelf.calls) <= in_a_call_max
    assert len(shelf.calls) <= -(-len(shelf.reads) // in_a_call_max) + 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_several_calls_are_under_way_at_a_time(shelf: Shelf, protocol: str) -> None:
    reader = ffrecord.open(f"{protocol}://train/")
    reader.read(range(COUNT))  # The index is there.
    shelf.calls.clear()
    shelf.fault = lambda number, path: "stall"
    future = reader.submit(range(0, COUNT, 7))
    eventually(lambda: len(shelf.calls) > 1)
    shelf.resume.set()
    assert len(future.result(30)) == -(-COUNT // 7)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_statistics_are_those_of_a_store(shelf: Shelf, protocol: str) -> None:
    reader = ffrecord.open(f"{protocol}://train/")
    batch = reader.read(range(COUNT))
    stats = reader.stats()
    assert stats["store_requests"] == len(shelf.reads)
    assert stats["store_bytes"] >= int(batch.sizes.sum())
    assert stats["store_retries"] == stats["store_throttled"] == stats["cache_hits"] == 0
    assert stats["records"] == COUNT


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_loader_reads_in_the_same_order_and_resumes(
    shelf: Shelf, local: ffrecord.Reader, protocol: str
) -> None:
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
        first, state = labels(f"{protocol}://train/", None, 4, mode)
        rest, _ = labels(f"{protocol}://train/", state, None, mode)
        assert first + rest == wanted


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_native_threads_read_too(shelf: Shelf, local: ffrecord.Reader, protocol: str) -> None:
    pytest.importorskip("torch")
    from ffrecord.torch import DataLoader, Dataset, Sampler

    def labels(where: Any) -> Any:
        dataset = Dataset(where, columns=["label"])
        sampler = Sampler(dataset, global_batch=32, seed=3, rank=0, world_size=1)
        loader = DataLoader(dataset, batch_sampler=sampler, mode="threads", num_workers=2)
        seen = [batch["label"].tolist() for batch in loader]  # No thread of Python reads.
        loader.close()
        return seen

    assert labels(f"{protocol}://train/") == labels(local.where)


# --- A cache on the local disk -------------------------------------------------------------------


def test_files_of_a_folder_are_sorted_however_they_are_listed(
    shelf: Shelf, local: ffrecord.Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = shelf.ls
    monkeypatch.setattr(shelf, "ls", lambda path: listed(path)[::-1])
    for where in ("shelf://train/", "ashelf://train/*.ffr"):
        assert_same(ffrecord.open(where), local)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_second_epoch_comes_from_the_cache(
    shelf: Shelf, local: ffrecord.Reader, protocol: str, tmp_path: Path
) -> None:
    reader = ffrecord.open(f"{protocol}://train/", cache=tmp_path / "cache")
    assert_same(reader, local)
    shelf.reads.clear()
    assert_same(reader, local)
    assert_same(pickle.loads(pickle.dumps(reader)), local)
    assert not shelf.reads
    assert reader.stats()["cache_hits"] > 0


def test_a_store_without_versions_cannot_be_cached(shelf: Shelf, tmp_path: Path) -> None:
    shelf.is_tagged = False
    with pytest.raises(ValueError, match="a cache needs a store that tells the version"):
        len(ffrecord.open("shelf://train/", cache=tmp_path))


def test_a_cache_tells_stores_apart_that_options_tell_apart_alone(
    shelf: Shelf, local: ffrecord.Reader, tmp_path: Path
) -> None:
    where, cache = "shelf://train/part-0.ffr", tmp_path / "cache"
    ours = {"host": "one", "token": "first"}
    ffrecord.open(where, cache=cache, storage_options=ours).read(range(100))
    old = shelf.files["train/part-0.ffr"]
    shelf.files["train/part-0.ffr"] = bytes(len(old))  # Of the other host: same name, size and tag.
    with pytest.raises(ffrecord.CorruptionError):
        ffrecord.open(where, cache=cache, storage_options={**ours, "host": "two"}).read([7])
    shelf.reads.clear()
    again = ffrecord.open(where, cache=cache, storage_options={**ours, "token": "second"})
    assert bytes(again.read([7])[0]["data"]) == bytes(local[7]["data"])
    assert not shelf.reads  # Credentials change, and the cache stays good.


def test_bytes_of_another_version_are_not_kept(
    shelf: Shelf, local: ffrecord.Reader, tmp_path: Path
) -> None:
    reader = ffrecord.open("ashelf://train/part-0.ffr", cache=tmp_path)
    len(reader)
    old = shelf.files["train/part-0.ffr"]
    shelf.put("train/part-0.ffr", bytes(len(old)))
    for policy in ("raise", "skip", "replace"):
        with pytest.raises(ffrecord.ConflictError, match="replaced"):
            reader.read([7], on_corrupt=policy)
    shelf.files["train/part-0.ffr"] = old  # As when a tag is a digest of the content.
    shelf.versions["train/part-0.ffr"] -= 1
    assert bytes(reader.read([7])[0]["data"]) == bytes(local[7]["data"])


# --- Processes -----------------------------------------------------------------------------------


def _read_in_child(reader: ffrecord.Reader, pipe: Any) -> None:
    pipe.send([int(sample["label"]) for sample in reader.read([1, 150, 299])])
    pipe.close()


def _labels_of_child(reader: ffrecord.Reader, method: str) -> Any:
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_read_in_child, args=(reader, theirs))
    child.start()
    theirs.close()
    labels = ours.recv() if ours.poll(60) else None
    child.join(60)
    assert child.exitcode == 0
    return labels


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_forked_child_reads_on_and_so_does_its_parent(shelf: Shelf, protocol: str) -> None:
    reader = ffrecord.open(f"{protocol}://train/")
    reader.read([0, 100, 200])
    for _ in range(3):
        assert _labels_of_child(reader, "fork") == [1, 150, 299]
        assert [int(sample["label"]) for sample in reader.read([2, 151])] == [2, 151]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_all_kinds_read_over_http(served: RangeServer, method: str) -> None:
    reader = ffrecord.open(addresses(served), storage_options={})
    reader.read([0, 100, 200])
    assert _labels_of_child(reader, method) == [1, 150, 299]
    assert [int(sample["label"]) for sample in reader.read([2, 151])] == [2, 151]


def _forked(where: list[str], options: dict[str, Any], exits: bool) -> None:
    """Open and read in a forked child, which ends at once, or as a program does."""
    if (child := os.fork()) == 0:
        status = 1
        try:
            with ffrecord.open(where, storage_options=options, timeout_s=20) as reader:
                reader.read([1, 150, 299])
            gc.collect()
            if exits:
                weakref.finalize._exitfunc()  # type: ignore[attr-defined]
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def _fork_and_read(where: list[str], options: dict[str, Any], exits: bool) -> None:
    assert fsspec  # Imported before: its own hook of a fork comes first, and clears its caches.
    for _ in range(3):
        with ffrecord.open(where, storage_options=options, timeout_s=20) as reader:
            reader.read([0, 100, 200])
            _forked(where, options, exits)
            assert [int(sample["label"]) for sample in reader.read([2, 151])] == [2, 151]
        _forked(where, options, exits)  # The file system is there, without a reader.


@pytest.mark.parametrize("exits", [False, True])
@pytest.mark.parametrize("chain", ["", "simplecache::"])
def test_a_forked_child_leaves_the_connections_of_its_parent_alone(
    served: RangeServer, chain: str, exits: bool, tmp_path: Path
) -> None:
    where = [f"{chain}{address}" for address in addresses(served)]
    options = {"simplecache": {"cache_storage": str(tmp_path)}} if chain else {}
    process = multiprocessing.get_context("spawn").Process(
        target=_fork_and_read, args=(where, options, exits)
    )

    process.start()
    process.join(200)

    assert process.exitcode == 0


def test_a_child_that_is_forked_while_others_read_is_served(shelf: Shelf) -> None:
    reader = ffrecord.open("ashelf://train/")
    reader.read([0, 150])  # The pages of the index are there.
    shelf.fault = lambda number, path: "stall"
    ahead = [reader.submit([i, 150 + i]) for i in range(4)]
    eventually(lambda: len(shelf.reads) > 2)
    shelf.fault = lambda number, path: None
    assert _labels_of_child(reader, "fork") == [1, 150, 299]
    shelf.resume.set()
    assert [len(batch.result(30)) for batch in ahead] == [2] * 4


def test_a_pickle_holds_the_arguments_alone(shelf: Shelf, local: ffrecord.Reader) -> None:
    reader = ffrecord.open("ashelf://train/")
    len(reader)
    text = pickle.dumps(reader)
    assert len(text) < 1024
    assert_same(pickle.loads(text), local)
