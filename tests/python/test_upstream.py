"""Goal: code written for HFAiLab/ffrecord works, and what was wrong there is not wrong here.

Method: its names are used as its documentation does; each defect known of it has a test of its own
that is named after what should happen.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from ffrecord import FileReader, FileWriter
from ffrecord.utils import dump

DATA = Path(__file__).resolve().parents[1] / "data" / "ffrecord-v1"
CASES: dict[str, dict[str, Any]] = json.loads((DATA / "manifest.json").read_text())


def write(path: Path, records: list[Any]) -> Path:
    with FileWriter(path, len(records)) as writer:
        for record in records:
            writer.write_one(record)
    return path


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def open_descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "a.ffr", [bytes([i]) * i for i in range(10)])


def test_records_come_back_in_request_order_repeats_and_all(path: Path) -> None:
    with FileReader(path) as reader:
        assert reader.n == 10
        found = reader.read([3, 0, 9, 3])

    assert isinstance(found, list)
    assert [record.tobytes() for record in found] == [b"\3" * 3, b"", b"\t" * 9, b"\3" * 3]
    assert all(r.dtype == np.uint8 and r.ndim == 1 and r.flags.owndata for r in found)
    found[0][0] = 7  # Writable, and nobody else's.
    assert found[3][0] == 3


def test_any_sequence_of_integers_will_do(path: Path) -> None:
    reader = FileReader(path)

    assert len(reader.read(np.arange(4))) == 4
    assert len(reader.read((1, np.int32(2)))) == 2
    assert len(reader.read(range(10))) == 10
    assert reader.read([]) == []
    assert reader.read_one(np.int64(2)).tobytes() == b"\2\2"
    with pytest.raises(TypeError):
        reader.read([1.5])  # type: ignore[list-item]


def test_the_tables_are_those_of_the_file(path: Path) -> None:
    reader = FileReader(path)

    offsets, checksums = reader.get_offsets(0), reader.get_checksums(0)

    sizes = list(range(10))
    assert np.diff(offsets).tolist() == sizes
    assert offsets[0] == 12 + 12 * 10
    assert offsets[-1] == path.stat().st_size
    assert checksums.tolist() == [zlib.crc32(bytes([i]) * i) for i in range(10)]
    with pytest.raises(RuntimeError, match="file 1"):
        reader.get_offsets(1)


def test_a_file_has_upstreams_bytes(tmp_path: Path) -> None:
    written = write(tmp_path / "a.ffr", [b"", b"abc"]).read_bytes()

    assert written.hex() == (
        "15d1620a0200000000000000" + "00000000c2412435" + "2400000000000000" * 2 + "616263"
    )


def test_folders_and_lists_are_one_sequence(tmp_path: Path) -> None:
    for name in ("10", "9", "a"):
        write(tmp_path / f"{name}.ffr", [name.encode()])
    (tmp_path / "other.txt").write_bytes(b"x")

    assert [r.tobytes() for r in FileReader(tmp_path).read(range(3))] == [b"10", b"9", b"a"]
    names = [str(tmp_path / "a.ffr"), tmp_path / "9.ffr"]
    assert [r.tobytes() for r in FileReader(names).read([0, 1])] == [b"a", b"9"]


def test_a_reader_of_a_relative_name_stays_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with FileReader(path.name) as reader:
        (path.parent / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        reader.validate()
        assert len(reader.get_offsets(0)) == 11
        assert pickle.loads(pickle.dumps(reader)).read_one(3).tobytes() == b"\3" * 3


def test_a_reader_pickles_as_its_arguments(path: Path) -> None:
    reader = FileReader(path, check_data=False)
    reader.read([1])

    copy = pickle.loads(pickled := pickle.dumps(reader))

    assert len(pickled) < 300
    assert (copy.fnames, copy.check_data) == ([str(path)], False)
    assert copy.read_one(3).tobytes() == b"\3\3\3"


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (lambda folder: FileReader(folder / "no.ffr"), (AssertionError, FileNotFoundError)),
        (lambda folder: FileReader([]), (AssertionError, ValueError)),
        (lambda folder: FileReader(folder), (AssertionError, FileNotFoundError)),
        (lambda folder: FileReader(folder / "text"), (AssertionError, ValueError)),
        (lambda folder: FileReader(5), (TypeError,)),
        (lambda folder: FileWriter(folder / "a.txt", 1), (AssertionError, ValueError)),
        (lambda folder: FileWriter(5, 1), (AssertionError, TypeError)),
        (lambda folder: FileWriter(folder / "a.ffr", -1), (RuntimeError, ValueError)),
        (lambda folder: ffrecord.PackedFolder(folder / "a.ffr"), (AssertionError,)),
    ],
)
def test_errors_are_what_upstream_raises_and_what_fits(
    tmp_path: Path, make: Callable[[Path], object], kinds: tuple[type[Exception], ...]
) -> None:
    (tmp_path / "text").write_bytes(b"x")

    with pytest.raises(kinds[0]) as caught:
        make(tmp_path)

    assert all(isinstance(caught.value, kind) for kind in kinds)


def test_optimised_python_refuses_just_the_same() -> None:
    code = "import ffrecord; ffrecord.FileReader('no.ffr')"
    command = [sys.executable, "-O", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    assert "MissingError" in done.stderr


def test_validate_finds_what_reads_would_not(tmp_path: Path) -> None:
    FileReader(DATA / "random.ffr").validate()
    unchecked = FileReader(DATA / "bad_sample.ffr", check_data=False)
    assert len(unchecked.read_one(11)) > 0

    with pytest.raises(RuntimeError, match=r"bad_sample\.ffr.*11"):
        unchecked.validate()


def test_a_closed_reader_or_writer_says_so(path: Path, tmp_path: Path) -> None:
    reader = FileReader(path)
    kept = reader.read([4])
    reader.close()
    reader.close()

    with pytest.raises(RuntimeError, match="closed"):
        reader.read([0])
    assert kept[0].tobytes() == b"\4" * 4
    writer = FileWriter(tmp_path / "b.ffr", 0)
    writer.close()
    writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        writer.write_one(b"x")


def test_the_file_system_is_asked_about_alignment(path: Path) -> None:
    with path.open("rb") as file:
        assert ffrecord.checkFsAlign(file.fileno()) is False


# What was wrong there.


def test_a_killed_writer_leaves_no_visible_file(tmp_path: Path) -> None:
    code = """
import os, signal, sys, ffrecord
writer = ffrecord.FileWriter(sys.argv[1], 100)
for i in range(int(sys.argv[2])):
    writer.write_one(bytes(1000))
os.kill(os.getpid(), signal.SIGKILL)
"""
    for written in (0, 1, 50, 100):
        assert run(code, tmp_path / "a.ffr", written).returncode == -signal.SIGKILL

        assert list(tmp_path.glob("*.ffr")) == []


def test_a_full_disk_fails_and_the_old_file_survives(path: Path) -> None:
    before = path.read_bytes()
    code = """
import resource, signal, sys, ffrecord
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_480, 20_480))
try:
    with ffrecord.FileWriter(sys.argv[1], 100) as writer:
        for i in range(100):
            writer.write_one(bytes(1000))
except OSError as error:
    print(error.errno)
"""
    done = run(code, path)

    assert done.stdout.split() == ["27"], done.stderr  # EFBIG
    assert path.read_bytes() == before


def test_too_few_records_fail_close_and_nothing_else(tmp_path: Path) -> None:
    code = """
import gc, sys, ffrecord
writer = ffrecord.FileWriter(sys.argv[1], 3)
writer.write_one(b"x")
del writer
gc.collect()
try:
    with ffrecord.FileWriter(sys.argv[1], 3) as writer:
        raise KeyError("the caller's own")
except KeyError:
    print("passed")
writer = ffrecord.FileWriter(sys.argv[1], 3)
try:
    writer.close()
except RuntimeError as error:
    print(error)
writer = ffrecord.FileWriter(sys.argv[1], 1)  # Left to the end of the process.
"""
    done = run(code, tmp_path / "a.ffr")

    assert (done.returncode, done.stderr) == (0, "")
    assert "passed" in done.stdout
    assert "3 records were declared, 0 written" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_too_many_records_are_refused(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path / "a.ffr", 1)
    writer.write_one(b"x")

    with pytest.raises(RuntimeError, match="one more"):
        writer.write_one(b"y")

    writer.close()
    assert FileReader(tmp_path / "a.ffr").n == 1


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10, dtype=np.float32),
        np.arange(12, dtype=np.int16).reshape(3, 4),
        np.arange(20, dtype=np.int64)[::3],
        np.arange(12).reshape(3, 4).T,
        np.float64(2.5),
    ],
    ids=["float32", "2-D", "strided", "transposed", "scalar"],
)
def test_an_array_is_stored_with_all_its_bytes(tmp_path: Path, array: np.ndarray) -> None:
    write(tmp_path / "a.ffr", [array, memoryview(np.ascontiguousarray(array))])

    for record in FileReader(tmp_path / "a.ffr").read([0, 1]):
        assert record.tobytes() == np.asarray(array).tobytes()


@pytest.mark.parametrize("check_data", [True, False])
def test_hostile_counts_and_offsets_allocate_nothing(check_data: bool) -> None:
    code = """
import resource, sys, ffrecord
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in sys.argv[2:]:
    try:
        reader = ffrecord.FileReader(name, sys.argv[1] == "True")
        reader.read(range(reader.n))
    except RuntimeError:
        pass
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 64 << 10, f"{grown} KiB"
"""
    files = [DATA / file for case in CASES.values() for file in case["files"]]
    done = run(code, check_data, *files)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("index", [-1, 10, 2**62, 2**63, -(2**70)])
def test_an_index_out_of_range_is_refused_before_any_read(path: Path, index: int) -> None:
    reader = FileReader(path)

    for attempt in (lambda: reader.read_one(index), lambda: reader.read([0, index])):
        with pytest.raises(RuntimeError, match="out of range") as caught:
            attempt()
        assert isinstance(caught.value, IndexError)
    assert reader.source.stats()["records"] == 0


def test_a_reader_used_before_a_fork_works_in_the_child(path: Path) -> None:
    reader = FileReader(path)
    expected = [bytes([i]) * i for i in (1, 2, 3)]
    assert [r.tobytes() for r in reader.read([1, 2, 3])] == expected

    children = []
    for _ in range(4):
        if (pid := os.fork()) == 0:
            good = [r.tobytes() for r in reader.read([1, 2, 3])] == expected
            os._exit(0 if good else 1)
        children.append(pid)

    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert [r.tobytes() for r in reader.read([1, 2, 3])] == expected


def test_two_hundred_readers_open_at_once(path: Path) -> None:
    readers = [FileReader(path) for _ in range(200)]

    assert all(reader.read_one(5).tobytes() == b"\5" * 5 for reader in readers)


def test_many_threads_share_a_reader(path: Path) -> None:
    reader, wrong = FileReader(path), []

    def read(seed: int) -> None:
        for indices in np.random.default_rng(seed).integers(0, 10, (50, 20)):
            for index, record in zip(indices.tolist(), reader.read(indices), strict=True):
                if record.tobytes() != bytes([index]) * index:
                    wrong.append(index)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_a_bad_record_costs_only_itself() -> None:
    reader = FileReader(DATA / "bad_sample.ffr")
    before = open_descriptors()

    for _ in range(20):
        with pytest.raises(RuntimeError, match=r"bad_sample\.ffr.*11"):
            reader.read(range(30))

    assert len(reader.read([i for i in range(30) if i != 11])) == 29
    assert open_descriptors() == before


def test_tables_outlive_their_reader(path: Path) -> None:
    reader = FileReader(path)
    offsets = reader.get_offsets(0)
    reader.close()
    del reader

    assert offsets[-1] == path.stat().st_size


def test_a_failed_open_leaks_no_descriptor_and_none_is_inherited(path: Path) -> None:
    before = open_descriptors()
    for name in ("bad_offset", "cut_table", "huge_n", "empty", "zeros"):
        with pytest.raises(RuntimeError):
            FileReader(DATA / CASES[name]["files"][0])
    with pytest.raises(AssertionError):
        FileReader([path, path.parent / "no.ffr"])
    assert open_descriptors() == before

    reader = FileReader(path)
    reader.read([1])
    inherited = run("import os; print(len(os.listdir('/proc/self/fd')))")
    assert int(inherited.stdout) <= 4  # Standard ones, and the listing itself.


class FailsInOnePlace:
    """A dataset of ten, of which one cannot be had."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> bytes:
        if index == 7:
            raise KeyError("record seven")
        return b"x"


@pytest.mark.parametrize("nfiles", [1, 5])
def test_dump_reports_failed_children(tmp_path: Path, nfiles: int) -> None:
    with pytest.raises(KeyError, match="record seven"):
        dump(FailsInOnePlace(), tmp_path / "out.ffr", nfiles)  # type: ignore[arg-type]

    assert not (tmp_path / "out.ffr" / "PART_00003.ffr").exists()
    assert not (tmp_path / "out.ffr").is_file()


def test_dump_writes_parts_of_equal_size(tmp_path: Path) -> None:
    records = [bytes([i]) for i in range(10)]

    with pytest.warns(UserWarning, match="5 files rather than 6"):
        dump(records, tmp_path / "parts", 6)
    dump(records, tmp_path / "one.ffr", 1)

    names = [path.name for path in sorted((tmp_path / "parts").iterdir())]
    assert names == [f"PART_{i:05d}.ffr" for i in range(5)]
    for place in (tmp_path / "parts", tmp_path / "one.ffr"):
        assert [r.tobytes() for r in FileReader(place).read(range(10))] == records
    with pytest.raises(ValueError, match="nfiles is 0"):
        dump(records, tmp_path / "none", 0)
