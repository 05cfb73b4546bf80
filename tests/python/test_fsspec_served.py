"""Goal: fsspec sees what a daemon serves as files: the same bytes, one version, never written.

Method: datasets and a checkpoint at a real daemon, read through fsspec's own functions and compared
with the files on disk; names are replaced and the daemon goes away meanwhile.
"""

import errno
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import ffrecord
import ffrecord.checkpoint as ckpt
from cluster import cluster_in, kill
from daemon import Daemon
from ffrecord.fsspec import FileSystem
from interrupting import interrupted_after

COUNT = 300


@pytest.fixture(autouse=True)
def registered() -> None:
    """Where the package of the source tree is tested, nobody has installed its entry point."""
    fsspec.register_implementation("ffrecord", FileSystem, clobber=True)


def write(path: Path, seed: int) -> Path:
    chance = np.random.default_rng(seed)
    with ffrecord.Writer(path, {"label": "i64", "data": "bytes"}, replace=True) as writer:
        for i in range(COUNT):
            writer.write({"label": seed * COUNT + i, "data": chance.bytes(9_000 + 40 * seed)})
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    for part in range(2):
        write(made / f"part-{part}.ffr", part)
    return made


@pytest.fixture(scope="module")
def daemon(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("served")) as running:
        ffrecord.publish(folder, running.address("demo/train"))
        ffrecord.publish(folder / "part-0.ffr", running.address("demo/deep/er"))
        ffrecord.publish(folder / "part-1.ffr", running.address("other"))
        ckpt.save(running.address("runs/x"), 7, {"w": np.arange(100_000), "step": 7})
        yield running


@pytest.fixture
def system() -> FileSystem:
    return FileSystem(timeout_s=20)


# --- Files ---------------------------------------------------------------------------------------


def test_a_file_is_read_whole_and_at_random_as_on_disk(daemon: Daemon, folder: Path) -> None:
    expected = (folder / "part-1.ffr").read_bytes()
    address = daemon.address("demo/train/part-1.ffr")
    chance = np.random.default_rng(3)

    with fsspec.open(address) as file:
        assert file.read() == expected
    for cache in ("none", "readahead", "bytes"):
        with fsspec.open(address, cache_type=cache) as file:
            for at in chance.integers(0, len(expected), 20).tolist():
                size = int(chance.integers(0, 100_000))
                file.seek(at)
                assert file.read(size) == expected[at : at + size]
            file.seek(-5, 2)
            assert file.read(100) == expected[-5:]
            assert file.read(1) == b""


@pytest.mark.parametrize(
    ("start", "end"), [(None, None), (0, 0), (5, 90), (-7, None), (-9, -2), (50, 20), (9, 1 << 40)]
)
def test_a_range_of_a_file_is_cut_as_a_slice(
    daemon: Daemon, folder: Path, system: FileSystem, start: int | None, end: int | None
) -> None:
    expected = (folder / "part-0.ffr").read_bytes()
    path = daemon.address("demo/train/part-0.ffr")

    assert system.cat_file(path, start, end) == expected[start:end]
    assert system.cat_ranges([path], start, end) == [expected[start:end]]


def test_many_ranges_of_several_names_come_in_their_order(
    daemon: Daemon, folder: Path, system: FileSystem
) -> None:
    names = ["demo/train/part-0.ffr", "other/part-1.ffr", "demo/train/part-1.ffr"] * 40
    starts: list[int | None] = [31 * row for row in range(len(names))]
    ends: list[int | None] = [31 * row + 1_000 * (row % 7) for row in range(len(names))]

    found = system.cat_ranges([daemon.address(name) for name in names], starts, ends)

    for name, start, end, piece in zip(names, starts, ends, found, strict=True):
        assert piece == (folder / Path(name).name).read_bytes()[start:end]


def test_a_range_that_cannot_be_read_spoils_only_itself(
    daemon: Daemon, folder: Path, system: FileSystem
) -> None:
    names = ["demo/train/no.ffr", "demo/train/part-0.ffr", "no/part-0.ffr", "demo/train"]
    paths = [daemon.address(name) for name in names]

    absent, good, nowhere, a_folder = system.cat_ranges(paths, 0, 4)

    assert isinstance(absent, FileNotFoundError)
    assert good == (folder / "part-0.ffr").read_bytes()[:4]
    assert isinstance(nowhere, FileNotFoundError)
    assert isinstance(a_folder, IsADirectoryError)
    with pytest.raises(FileNotFoundError, match=r"no\.ffr; there are part-0\.ffr, part-1\.ffr"):
        system.cat_ranges(paths, 0, 4, on_error="raise")
    with pytest.raises(ValueError, match="4 paths, 1 starts"):
        system.cat_ranges(paths, [0], [4])


def test_a_large_file_is_read_in_one_call(daemon: Daemon, tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "large.ffr") as writer:  # Two extents.
        for _ in range(9):
            writer.write(os.urandom(8 << 20))
    ffrecord.publish(tmp_path / "large.ffr", daemon.address("large"))
    try:
        found = fsspec.filesystem("ffrecord").cat_file(daemon.address("large/large.ffr"))
        assert found == (tmp_path / "large.ffr").read_bytes()
    finally:
        ffrecord.remove_published(daemon.address("large"))


def damage_extents(folder: Path, size: int) -> int:
    """Change a byte of each stored extent of that size; return how many there are."""
    stored = folder.glob("**/extents/*/*")
    found = [path for path in stored if 0 <= path.stat().st_size - size <= 4096]  # A header.
    for path in found:
        with path.open("r+b") as file:
            file.seek(size // 2)
            byte = file.read(1)
            file.seek(size // 2)
            file.write(bytes([byte[0] ^ 1]))
    return len(found)


def test_a_damaged_file_is_not_copied(folder: Path, tmp_path: Path, system: FileSystem) -> None:
    size = (folder / "part-0.ffr").stat().st_size
    with Daemon(tmp_path / "served") as running:
        ffrecord.publish(folder / "part-0.ffr", running.address("x"))
        assert damage_extents(running.data, size) == 1
        path = running.address("x/part-0.ffr")

        with pytest.raises(ffrecord.CorruptionError, match=r"part-0\.ffr.* fail their checksum"):
            system.get(path, str(tmp_path / "copy.ffr"))
        with pytest.raises(ffrecord.CorruptionError, match=r"part-0\.ffr.* fail their checksum"):
            system.cat_file(path)
        assert isinstance(system.cat_ranges([path], 0, None)[0], ffrecord.CorruptionError)


def test_threads_and_a_forked_child_share_a_file_system(
    daemon: Daemon, folder: Path, system: FileSystem
) -> None:
    path = daemon.address("demo/train/part-0.ffr")
    expected = (folder / "part-0.ffr").read_bytes()
    with system.open(path, cache_type="none") as file, ThreadPoolExecutor(4) as threads:
        wanted = [(50 * i, 50 * i + 4_000) for i in range(100)]
        pieces = list(threads.map(lambda span: system.cat_file(path, *span), wanted))
        assert pieces == [expected[start:end] for start, end in wanted]
        child = os.fork()
        if child == 0:
            file.seek(100)
            good = file.read(50) == expected[100:150] == system.cat_file(path, 100, 150)
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- Folders -------------------------------------------------------------------------------------


def test_names_are_folders_of_their_files(daemon: Daemon, folder: Path, system: FileSystem) -> None:
    root = daemon.listen

    assert system.ls(f"ffrecord://{root}", detail=False) == [
        f"{root}/{name}" for name in ("demo", "other", "runs")
    ]
    assert system.ls(f"{root}/demo/", detail=False) == [f"{root}/demo/deep", f"{root}/demo/train"]
    first, second = system.ls(f"{root}/demo/train")
    assert first["name"] == f"{root}/demo/train/part-0.ffr"
    assert second["size"] == (folder / "part-1.ffr").stat().st_size
    assert first["type"] == "file" and first["etag"] != second["etag"]
    assert system.ls(f"{root}/demo/train/part-0.ffr") == [first]
    assert system.info(f"{root}/demo")["type"] == "directory"
    assert system.isdir(root) and system.isdir(f"{root}/demo/deep")
    assert system.isfile(f"{root}/other/part-1.ffr") and not system.isfile(f"{root}/other")
    # The same bytes are the same version, under whatever name.
    assert system.info(f"{root}/other/part-1.ffr")["etag"] == second["etag"]
    assert system.du(f"{root}/demo/train") == first["size"] + second["size"]


def test_patterns_and_walks_find_the_files(daemon: Daemon, system: FileSystem) -> None:
    root = daemon.listen
    parts = [f"{root}/demo/train/part-{number}.ffr" for number in range(2)]

    assert system.glob(f"ffrecord://{root}/demo/train/*.ffr") == parts
    assert system.glob(f"{root}/demo/*/part-?.ffr") == parts
    assert system.glob(f"{root}/**/part-0.ffr") == [f"{root}/demo/deep/er/part-0.ffr", parts[0]]
    assert system.find(f"{root}/demo") == [f"{root}/demo/deep/er/part-0.ffr", *parts]
    assert system.glob(f"{root}/demo/none*") == []
    files = fsspec.open_files(daemon.address("demo/train/part-*.ffr"))
    assert [file.path for file in files] == parts


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("demo/train/x.ffr", FileNotFoundError, r"train/x\.ffr; there are part-0\.ffr, part-1"),
        ("nothing/x.ffr", FileNotFoundError, r"no file or folder ffrecord://\S+/nothing/x\.ffr"),
        ("demo/tra", FileNotFoundError, "demo/tra"),
        ("demo/train", IsADirectoryError, "demo/train is a folder"),
        ("demo", IsADirectoryError, "demo is a folder"),
        ("de mo/x.ffr", ValueError, "bad name"),
    ],
)
def test_what_is_no_file_is_named(
    daemon: Daemon, system: FileSystem, name: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        system.open(daemon.address(name))
    with pytest.raises(error, match=text):
        system.cat_file(daemon.address(name))


def test_an_address_without_a_daemon_is_refused(system: FileSystem) -> None:
    for path in ("ffrecord://", "ffrecord:///train/x.ffr", ""):
        with pytest.raises(ValueError, match=r"names no daemon: write ffrecord://host"):
            system.info(path)


@pytest.mark.parametrize("user", ["anna:s3cret", "anna:s3/cret", "a:s3cret@x", "s3cret"])
def test_no_error_shows_a_password_that_an_address_has(user: str, system: FileSystem) -> None:
    path = f"{user}@127.0.0.1:9/train"
    for call in (
        lambda: system.ls(path),
        lambda: system.open(f"{path}/a.ffr"),
        lambda: fsspec.open(f"ffrecord://{path}/a.ffr?transport=tcp").open(),
        lambda: len(ffrecord.open(f"ffrecord://{path}")),
        lambda: ffrecord.publish("/nowhere", f"ffrecord://127.0.0.1,{path}"),
    ):
        with pytest.raises(ValueError, match=r"@127\.0\.0\.1:9/train.*knows no user") as raised:
            call()
        assert "s3" not in str(raised.value)


# --- Versions ------------------------------------------------------------------------------------


def test_an_open_file_stays_its_version_and_its_pickle_finds_no_other(
    daemon: Daemon, tmp_path: Path, system: FileSystem
) -> None:
    path = write(tmp_path / "a.ffr", 5)
    old = path.read_bytes()
    address = daemon.address("changing")
    ffrecord.publish(path, address)
    file = system.open(f"{address}/a.ffr", cache_type="none")
    sent = pickle.dumps(file)
    before = system.info(f"{address}/a.ffr")
    assert pickle.loads(sent).read(100) == old[:100]

    ffrecord.publish(write(path, 6), address, replace=True)

    assert file.read(len(old)) == old
    assert system.cat_file(f"{address}/a.ffr") == path.read_bytes() != old
    assert system.info(f"{address}/a.ffr")["etag"] != before["etag"]
    assert system.ukey(f"{address}/a.ffr") != system.ukey(daemon.address("other/part-1.ffr"))
    with pytest.raises(ffrecord.ConflictError, match=r"changing/a\.ffr was replaced"):
        pickle.loads(sent)


def test_a_daemon_that_is_away_is_an_error_and_no_empty_folder(
    folder: Path, tmp_path: Path
) -> None:
    system = FileSystem(timeout_s=0.4)
    with Daemon(tmp_path / "served") as running:
        ffrecord.publish(folder / "part-0.ffr", running.address("x"))
        address = running.address("x")
        file = system.open(f"{address}/part-0.ffr", cache_type="none")
    calls: list[Callable[[], Any]] = [
        lambda: system.exists(f"{address}/part-0.ffr"),
        lambda: system.glob(f"{address}/*.ffr"),
        lambda: system.find(address),
        lambda: system.ls(address),
        lambda: system.open(f"{address}/part-0.ffr"),
        lambda: file.read(10),
    ]
    for call in calls:
        with pytest.raises((ffrecord.UnavailableError, ffrecord.DeadlineExceeded)):
            call()


def test_an_interrupt_ends_the_wait_for_a_silent_daemon(folder: Path, tmp_path: Path) -> None:
    system = FileSystem(timeout_s=600)
    with Daemon(tmp_path / "served") as running:
        ffrecord.publish(folder / "part-0.ffr", running.address("x"))
        path = running.address("x/part-0.ffr")
        file = system.open(path, cache_type="none")
        running.freeze()
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.3):
            file.read(10)
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.3):
            system.open(path)
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.3):
            system.ls(running.address("x"))
        running.thaw()
        assert file.read(10) == (folder / "part-0.ffr").read_bytes()[:10]


# --- Writing -------------------------------------------------------------------------------------


def test_nothing_can_be_written(daemon: Daemon, system: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "x.ffr").write_bytes(b"x")
    root = daemon.listen
    file, new = f"{root}/demo/train/part-0.ffr", f"{root}/demo/train/new.ffr"
    before = system.find(root, detail=True)
    calls: list[Callable[[], Any]] = [
        lambda: system.open(new, "wb"),
        lambda: system.open(file, "ab"),
        lambda: fsspec.open(f"ffrecord://{new}", "w").open(),
        lambda: system.pipe(new, b"x"),
        lambda: system.put(str(tmp_path / "x.ffr"), new),
        lambda: system.touch(new),
        lambda: system.rm(file),
        lambda: system.rm(f"{root}/demo", recursive=True),
        lambda: system.mv(file, new),
        lambda: system.cp(file, new),
        lambda: system.mkdir(f"{root}/more"),
        lambda: system.makedirs(f"{root}/more", exist_ok=True),
        lambda: system.rmdir(f"{root}/demo"),
        lambda: system.write_text(new, "x"),
    ]
    for call in calls:
        with pytest.raises(OSError, match=r"read-only.*ffrecord\.publish") as caught:
            call()
        assert caught.value.errno == errno.EROFS
    assert system.find(root, detail=True) == before


# --- How it is used ------------------------------------------------------------------------------


def test_options_may_stand_behind_the_address(daemon: Daemon, folder: Path) -> None:
    address = daemon.address("demo/train/part-0.ffr")
    expected = (folder / "part-0.ffr").read_bytes()[:9]

    with fsspec.open(f"{address}?transport=tcp") as file:
        assert file.read(9) == expected
        assert file.fs.storage_options["transport"] == "tcp"
    with fsspec.open(address, transport="tcp", timeout_s=60) as file:
        assert file.read(9) == expected
    with pytest.raises(ValueError, match="unknown option colour; there are transport"):
        fsspec.open(f"{address}?transport=tcp&colour=red")
    with pytest.raises(ValueError, match="transport"):
        fsspec.open(address, transport="pigeon").open()
    with pytest.raises(ValueError, match="timeout_s is 0"):
        fsspec.open(address, timeout_s=0).open()


def test_a_file_may_be_called_what_would_be_an_option(
    daemon: Daemon, folder: Path, system: FileSystem, tmp_path: Path
) -> None:
    names = ["a?tls=b.ffr", "a?transport=tcp", "part-?.ffr", "100%&tls=x #1.ffr"]
    files = [name if name.endswith(".ffr") else f"{name}.ffr" for name in names]
    (tmp_path / "odd").mkdir()
    for file in files:
        (tmp_path / "odd" / file).write_bytes((folder / "part-0.ffr").read_bytes())
    ffrecord.publish(tmp_path / "odd", daemon.address("odd/names"))
    path = f"{daemon.listen}/odd/names"

    system.get(path, str(tmp_path / "copy"), recursive=True)

    assert sorted(one.name for one in (tmp_path / "copy").iterdir()) == sorted(files)
    assert sorted(system.ls(path, detail=False)) == sorted(f"{path}/{file}" for file in files)
    for file in files:
        assert system.exists(f"{path}/{file}")
        assert system.cat_file(f"{path}/{file}", 0, 9) == system.cat_file(
            f"{daemon.listen}/demo/train/part-0.ffr", 0, 9
        )
    for absent in ("a?tls=c.ffr", "a?tls=b.ffr/x", "a?tls=b"):
        assert not system.exists(f"{path}/{absent}")
        assert not system.exists(f"{daemon.listen}/{absent}")


def test_options_behind_the_address_go_through_a_local_cache(
    daemon: Daemon, folder: Path, tmp_path: Path
) -> None:
    where = f"simplecache::{daemon.address('demo/train')}/part-0.ffr?transport=tcp"
    with fsspec.open(where, simplecache={"cache_storage": str(tmp_path)}) as file:
        assert file.read() == (folder / "part-0.ffr").read_bytes()


def test_records_are_read_through_a_local_cache_of_fsspec(
    daemon: Daemon, folder: Path, tmp_path: Path
) -> None:
    where = f"simplecache::{daemon.address('demo/train')}/part-*.ffr"

    reader = ffrecord.open(where, storage_options={"simplecache": {"cache_storage": str(tmp_path)}})

    assert reader.fingerprint == ffrecord.open(folder).fingerprint
    assert reader.read(range(2 * COUNT))["label"].tolist() == list(range(2 * COUNT))


def test_a_copy_of_a_checkpoints_step_can_be_loaded(
    daemon: Daemon, system: FileSystem, tmp_path: Path
) -> None:
    (step,) = system.ls(f"{daemon.listen}/runs/x", detail=False)

    system.get(step, str(tmp_path / "copy" / Path(step).name), recursive=True)

    loaded = ckpt.load(tmp_path / "copy")
    assert loaded["step"] == 7
    assert loaded["w"].tolist() == list(range(100_000))


def test_torchs_hugging_face_storage_reads_what_is_exported_and_no_address(
    daemon: Daemon, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors")
    torch = pytest.importorskip("torch")  # The oldest packages are tested without.
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    if not hasattr(dcp, "HuggingFaceStorageReader"):
        pytest.skip("this torch has no HuggingFaceStorageReader")
    state = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    ours.mkdir()
    run = daemon.address("runs/hf")

    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(str(theirs)), no_dist=True)
    (written,) = theirs.glob("*.safetensors")
    ckpt.import_safetensors(written, run, 1)
    ckpt.export_safetensors(run, ours / "model.safetensors")
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(found, storage_reader=dcp.HuggingFaceStorageReader(str(ours)), no_dist=True)

    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    # It takes an address for a folder, and opens files by their paths: no file system helps.
    with pytest.raises(FileNotFoundError, match="ffrecord:"):
        dcp.HuggingFaceStorageReader(run).read_metadata()


def test_fsspec_finds_it_by_itself_and_imports_it_only_then() -> None:
    found = [one for one in entry_points(group="fsspec.specs") if one.name == "ffrecord"]
    if not found:
        pytest.skip("the package of the source tree is tested, and it is not installed")
    program = """
import sys
import fsspec
assert "ffrecord" not in sys.modules
assert fsspec.get_filesystem_class("ffrecord").__module__ == "ffrecord.fsspec"
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_fsspec_the_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["fsspec"] = None
import ffrecord
try:
    import ffrecord.fsspec
except ImportError as error:
    assert "pip install 'ffrecord[fsspec]'" in str(error), error
else:
    sys.exit("imported")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_cluster_is_one_file_system_also_without_a_node(folder: Path, tmp_path: Path) -> None:
    with cluster_in(tmp_path, node_count=2) as cluster:
        ffrecord.publish(folder, f"{cluster.address}/train")
        system = FileSystem(timeout_s=20)
        path = f"{cluster.address}/train/part-0.ffr"
        other = folder / "part-1.ffr"
        damaged = tmp_path / cluster.nodes[1].name
        assert damage_extents(damaged, other.stat().st_size) == 1
        for _ in range(4):  # Whichever node is asked first.
            assert system.cat_file(f"{cluster.address}/train/part-1.ffr") == other.read_bytes()

        file = system.open(path, cache_type="none")
        kill(cluster, cluster.nodes[0].name)

        expected = (folder / "part-0.ffr").read_bytes()
        assert file.read() == expected
        assert system.cat_file(path, 10, 90) == expected[10:90]
        assert len(system.glob(f"{cluster.address}/train/*.ffr")) == 2
