"""Goal: a reader returns what was written, in the order asked for, or says what it could not.

Method: small files of known records are written, then read whole, by batches, by policies for
damage, by threads, and in children of every start method.
"""

import ctypes
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ffrecord
from ffrecord import _ffrecord
from interrupting import interrupted_after

SCHEMA = {"image": "bytes", "label": "i64", "name": "utf8", "box": "f32[2,2]", "flag": "bool"}
START_METHODS = ["fork", "spawn", "forkserver"]


def sample(i: int) -> dict[str, object]:
    return {
        "image": bytes([i % 256]) * (i * 37 % 500),
        "label": i - 5,
        "name": f"é{i}",
        "box": np.full((2, 2), i / 2),
        "flag": i % 3 == 0,
    }


def raw(i: int) -> bytes:
    return b"%d:" % i + bytes([i % 251]) * (i * 53 % 700)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("typed") / "typed.ffr"
    with ffrecord.Writer(path, SCHEMA, compress="zstd") as writer:
        for i in range(100):
            writer.write(sample(i))
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "plain.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(300):
            writer.write(raw(i))
    return path


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Thirty records, of which 7 and 8 have a flipped bit."""
    path = tmp_path / "damaged.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(30):
            writer.write(b"record %02d " % i * 20)
    content = bytearray(path.read_bytes())
    for i in (7, 8):
        content[content.index(b"record %02d" % i) + 9] ^= 4
    path.write_bytes(content)
    return path


def test_a_sample_has_its_values_by_column(typed: Path) -> None:
    reader = ffrecord.open(typed)

    for i in (0, 42, 99):
        got = reader[i]
        assert isinstance(got, dict)
        wanted = sample(i)
        assert got["image"].tobytes() == wanted["image"]
        assert (got["label"], got["name"], got["flag"]) == (i - 5, f"é{i}", i % 3 == 0)
        np.testing.assert_array_equal(got["box"], wanted["box"])
    assert reader.schema == SCHEMA


def test_columns_are_whole_arrays_and_lists(typed: Path) -> None:
    indices = [3, 99, 3, 0]

    batch = ffrecord.open(typed).read(indices)

    label, box, flag = batch["label"], batch["box"], batch["flag"]
    assert isinstance(label, np.ndarray)
    assert label.dtype == np.int64
    assert label.tolist() == [i - 5 for i in indices]
    assert isinstance(box, np.ndarray)
    assert (box.dtype, box.shape) == (np.float32, (4, 2, 2))
    assert isinstance(flag, np.ndarray)
    assert (flag.dtype, flag.tolist()) == (np.bool_, [True, True, True, True])
    assert batch["name"] == [f"é{i}" for i in indices]
    assert [bytes(image) for image in batch["image"]] == [sample(i)["image"] for i in indices]
    assert batch.only(["name"])[1] == {"name": "é99"}
    with pytest.raises(KeyError, match="no column 'labl'; columns: image, label"):
        batch["labl"]


@given(indices=st.lists(st.integers(-300, 299), max_size=40))
def test_any_indices_give_their_records_in_request_order(plain: Path, indices: list[int]) -> None:
    wanted = [raw(i % 300) for i in indices]

    batch = ffrecord.open(plain).read(indices)

    assert len(batch) == len(indices)
    assert batch.indices.tolist() == [i % 300 for i in indices]
    assert [bytes(record) for record in batch] == wanted
    slab, data, offsets = batch.slab, batch.data, batch.offsets
    assert [
        slab[start : start + size].tobytes()
        for start, size in zip(batch.starts, batch.sizes, strict=True)
    ] == wanted
    assert [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)] == wanted
    assert not batch.status.any()


def test_records_that_lie_back_to_back_pack_without_a_copy(plain: Path) -> None:
    run = ffrecord.open(plain, direct=True).read(np.arange(10, 20))
    mixed = ffrecord.open(plain, direct=True).read([19, 10])
    warm = ffrecord.open(plain).read([19, 10])  # Copied in this order, if it is in memory.

    for batch in (run, mixed, warm):
        gapless = bool((batch.starts[1:] == batch.starts[:-1] + batch.sizes[:-1]).all())
        assert np.shares_memory(batch.data, batch.slab) == gapless
        assert batch.data is batch.data
    assert not np.shares_memory(mixed.data, mixed.slab)  # It lies as the file does.


def test_indices_count_from_the_end_and_may_be_numpys(plain: Path) -> None:
    reader = ffrecord.open(plain)

    assert bytes(reader[-1]) == raw(299)
    assert bytes(reader[np.int64(7)]) == raw(7)
    assert bytes(reader[np.uint8(7)]) == raw(7)
    assert [bytes(record) for record in reader[10:20:3]] == [raw(i) for i in range(10, 20, 3)]
    assert [bytes(record) for record in reader[::-1][:2]] == [raw(299), raw(298)]
    assert len(reader[5:5]) == 0
    np.testing.assert_array_equal(reader.read(np.array([3], np.uint16)).indices, [3])


@pytest.mark.parametrize("index", [300, -301, 2**40, -(2**63)])
def test_an_index_out_of_range_names_index_and_count(plain: Path, index: int) -> None:
    reader = ffrecord.open(plain)

    with pytest.raises(IndexError, match=f"{index}.*300"):
        reader[index]
    with pytest.raises(IndexError, match="300"):
        reader.read([0, index])
    assert reader.stats()["records"] == 0


def test_indices_of_other_kinds_are_refused(plain: Path) -> None:
    reader = ffrecord.open(plain)

    with pytest.raises(TypeError, match="float64"):
        reader.read([1.0])
    with pytest.raises(TypeError, match="bool"):
        reader.read([True, False])
    with pytest.raises(ValueError, match="shape"):
        reader.read([[1], [2]])
    with pytest.raises(IndexError):
        reader.read(np.array([2**64 - 1], np.uint64))
    with pytest.raises(TypeError, match=r"read\(\)"):
        reader["x"]  # type: ignore[call-overload]


def test_iteration_yields_every_record_once_and_batches_cut_it(plain: Path) -> None:
    reader = ffrecord.open(plain)

    assert [bytes(record) for record in reader] == [raw(i) for i in range(300)]
    assert [len(b) for b in reader.batches(64, start=10, stop=200)] == [64, 64, 62]
    assert list(reader.batches(start=300)) == []
    for batch in reader.batches(50):
        assert batch.indices[0] == 0
        break


def test_views_outlive_batch_and_reader(plain: Path) -> None:
    reader = ffrecord.open(plain)
    record = reader[42]
    batch = reader.read([1, 2])
    views = [batch.slab, batch.starts, batch.sizes, batch.status, batch.data, batch.offsets]
    copies = [view.copy() for view in views]
    reader.close()
    del reader, batch

    for _ in range(50):  # What would be reused is overwritten.
        other = ffrecord.open(plain)
        other.read(np.arange(100))
        other.close()

    assert bytes(record) == raw(42)
    for view, copy in zip(views, copies, strict=True):
        np.testing.assert_array_equal(view, copy)


def test_arrays_speak_dlpack(plain: Path) -> None:
    import torch

    record = ffrecord.open(plain)[9]

    assert torch.from_dlpack(record).data_ptr() == record.ctypes.data


def test_nothing_is_opened_before_the_first_use(tmp_path: Path) -> None:
    path = tmp_path / "later.ffr"
    reader = ffrecord.open(path)
    assert "not opened" in repr(reader)
    with ffrecord.Writer(path) as writer:
        writer.write(b"now")

    assert bytes(reader[0]) == b"now"
    assert "1 records" in repr(reader)


def test_a_pickle_holds_the_arguments_only(plain: Path) -> None:
    reader = ffrecord.open(plain, check_data=False)
    before = pickle.dumps(reader)
    reader[0]
    after = pickle.dumps(reader)

    assert len(before) == len(after) <= 1024
    assert bytes(pickle.loads(after)[5]) == raw(5)


def test_a_batch_survives_a_pickle(typed: Path) -> None:
    batch = ffrecord.open(typed).read([5, 1]).only(["label", "name"])

    copy = pickle.loads(pickle.dumps(batch))

    assert copy["name"] == ["é5", "é1"]
    assert copy["label"].tolist() == [0, -4]
    assert copy.columns == ("label", "name")


def test_a_closed_reader_says_so(plain: Path) -> None:
    with ffrecord.open(plain) as reader:
        assert len(reader) == 300

    with pytest.raises(ValueError, match="closed"):
        reader[0]


def test_a_damaged_record_is_raised_with_file_and_index(damaged: Path) -> None:
    reader = ffrecord.open(damaged)

    assert bytes(reader[6]).startswith(b"record 06")
    with pytest.raises(ffrecord.CorruptionError, match=r"damaged\.ffr.*\b7\b"):
        reader.read([1, 7])


def test_a_damaged_record_is_skipped_replaced_or_kept(damaged: Path) -> None:
    reader = ffrecord.open(damaged)

    skipped = reader.read([6, 7, 9], on_corrupt="skip")
    replaced = reader.read([6, 7, 8, 9], on_corrupt="replace")
    kept = reader.read([6, 7], on_corrupt="keep")

    assert skipped.indices.tolist() == [6, 9]
    assert bytes(skipped[1]).startswith(b"record 09")
    assert replaced.indices.tolist() == [6, 9, 9, 9]
    assert bytes(replaced[1]).startswith(b"record 09")
    assert kept.status.tolist() == [0, 3]
    assert bytes(kept[1]) == b""
    found = reader.stats()["damaged"]
    assert list(found) == [7, 8]
    assert "damaged.ffr" in found[7]
    with pytest.raises(ValueError, match="raise, skip, replace, keep"):
        reader.read([0], on_corrupt="ignore")  # type: ignore[arg-type]


def test_more_damage_than_max_corrupt_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rotten.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(40):
            writer.write(b"record %02d" % i)
    content = path.read_bytes().replace(b"record 1", b"rec0rd 1").replace(b"record 2", b"rec0rd 2")
    path.write_bytes(content)

    assert len(ffrecord.open(path, max_corrupt=0.5).read(range(40), on_corrupt="skip")) == 20
    with pytest.raises(ffrecord.CorruptionError, match=r"20 damaged records.*allows"):
        ffrecord.open(path).read(range(40), on_corrupt="skip")
    everything = ffrecord.open(path).read(range(40), on_corrupt="keep")
    assert np.count_nonzero(everything.status) == 20


def test_replace_gives_up_when_nothing_is_good(tmp_path: Path) -> None:
    path = tmp_path / "all.ffr"
    with ffrecord.Writer(path) as writer:
        writer.write(b"payload-0")
        writer.write(b"payload-1")
    path.write_bytes(path.read_bytes().replace(b"payload", b"pay10ad"))

    with pytest.raises(ffrecord.CorruptionError, match="none of the 2 records"):
        ffrecord.open(path).read([0], on_corrupt="replace")


def test_a_file_cut_under_a_reader_is_damage_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "cut.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(2000):
            writer.write(bytes([i % 256]) * 1000)
    reader = ffrecord.open(path)
    reader[0]

    os.truncate(path, 1_000_000)

    for index in (0, 900, 1100, 1999):
        with pytest.raises((ffrecord.CorruptionError, OSError), match=rf"cut\.ffr.*{index}"):
            reader[index]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", ffrecord.CorruptionError, "bad.ffr"),
        (b"\x89PNG\r\n\x1a\n" + bytes(500), ffrecord.CorruptionError, "bad.ffr"),
        (b"hello, this is no record file\n" * 40, ValueError, "bad.ffr: not an FFRecord file"),
        (b"\x89FFREC\r\n\x1a\n\x00\xff" + bytes(20), ffrecord.CorruptionError, "bad.ffr"),
    ],
    ids=["empty", "png", "text", "header-only"],
)
def test_a_foreign_or_empty_file_is_refused_by_name(
    tmp_path: Path, content: bytes, error: type[Exception], message: str
) -> None:
    path = tmp_path / "bad.ffr"
    path.write_bytes(content)

    with pytest.raises(error, match=message):
        len(ffrecord.open(path))


@given(cut=st.integers(1, 100_000))
def test_a_cut_file_is_refused_wherever_it_is_cut(typed: Path, cut: int) -> None:
    whole = typed.read_bytes()
    path = typed.with_name("cut.ffr")
    path.write_bytes(whole[: len(whole) - 1 - cut % (len(whole) - 1)])

    with pytest.raises(ffrecord.CorruptionError, match=r"cut\.ffr"):
        len(ffrecord.open(path))


@given(bit=st.integers(0, 2**40))
def test_no_flipped_bit_changes_a_record_unnoticed(typed: Path, bit: int) -> None:
    content = bytearray(typed.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path = typed.with_name("flipped.ffr")
    path.write_bytes(content)

    try:
        batch = ffrecord.open(path).read(range(100), on_corrupt="keep")
    except (ffrecord.CorruptionError, ValueError) as error:
        # A flipped bit may also make the version one that this library does not know.
        assert "flipped.ffr" in str(error)
        return
    good = ffrecord.open(typed).read(range(100))
    for row in np.flatnonzero(batch.status == 0):
        np.testing.assert_array_equal(batch.records()[row], good.records()[row])


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for where in (tmp_path / "no.ffr", tmp_path, str(tmp_path / "*.ffr"), [tmp_path / "no.ffr"]):
        with pytest.raises(FileNotFoundError, match=str(tmp_path)):
            len(ffrecord.open(where))
    for nothing in ([], [""]):
        with pytest.raises(ValueError, match="empty"):
            ffrecord.open(nothing)
    for wrong in (3, b"x.ffr"):
        with pytest.raises(TypeError, match=r"(?i)path"):
            ffrecord.open([wrong])  # type: ignore[list-item]


def test_folder_glob_and_list_are_one_sequence(tmp_path: Path) -> None:
    for name in ("a", "B", "10", "9", ".dot"):
        with ffrecord.Writer(tmp_path / f"{name}.ffr") as writer:
            writer.write(name.encode())
    (tmp_path / "notes.txt").write_text("not a record file")
    (tmp_path / "sub").mkdir()

    def names(where: object) -> list[str]:
        return [bytes(r).decode() for r in ffrecord.open(where)]  # type: ignore[arg-type]

    assert names(tmp_path) == [".dot", "10", "9", "B", "a"]
    assert names(str(tmp_path / "*.ffr")) == [".dot", "10", "9", "B", "a"]
    assert names([tmp_path / "a.ffr", tmp_path / "9.ffr", tmp_path / "a.ffr"]) == ["a", "9", "a"]
    (tmp_path / "x.ffr").mkdir()
    with pytest.raises(IsADirectoryError, match=r"x\.ffr"):
        names(tmp_path)


def test_a_file_whose_name_looks_like_a_glob_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "[1]*.ffr"
    with ffrecord.Writer(path) as writer:
        writer.write(b"x")

    assert len(ffrecord.open(path)) == 1


def test_names_of_any_bytes_open(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.ffr")
    with ffrecord.Writer(path) as writer:
        writer.write(b"x")

    assert ffrecord.open(path).files[0].name == path


def test_the_fingerprint_is_of_content_not_of_storage(tmp_path: Path) -> None:
    def written(name: str, records: list[bytes], **options: object) -> ffrecord.Reader:
        with ffrecord.Writer(tmp_path / name, **options) as writer:
            for record in records:
                writer.write(record)
        return ffrecord.open(tmp_path / name)

    records = [raw(i) for i in range(20)]
    first = written("1.ffr", records)

    assert first.fingerprint == written("2.ffr", records, compress="zstd").fingerprint
    assert first.fingerprint != written("3.ffr", records[::-1]).fingerprint
    assert first.files[0].fingerprint == written("4.ffr", records, align=512).files[0].fingerprint


def longest_pause(call: Callable[[], object]) -> float:
    """The longest stop of this thread while another one runs `call`, as a share of that time."""
    duration = [0.0]

    def measure() -> None:
        begin = time.perf_counter()
        call()
        duration[0] = time.perf_counter() - begin

    thread = threading.Thread(target=measure)
    pause, last = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        pause, last = max(pause, now - last), now
    return pause / duration[0]


def test_other_threads_run_while_one_reads(tmp_path: Path) -> None:
    """Each read lasts many time slices; if one of ten does not stop us, reads hold no GIL."""
    path = tmp_path / "large.ffr"
    with ffrecord.Writer(path) as writer:
        for _ in range(64):
            writer.write(os.urandom(1 << 20))
    reader = ffrecord.open(path)
    indices = np.arange(64)
    holds_the_gil = ctypes.PyDLL(None).usleep

    pauses = [longest_pause(lambda: reader.read(indices)) for _ in range(10)]

    assert min(pauses) < 0.5
    assert longest_pause(lambda: holds_the_gil(200_000)) > 0.6


def test_threads_share_a_reader(plain: Path) -> None:
    reader = ffrecord.open(plain)
    failures: list[int] = []

    def work(seed: int) -> None:
        order = np.random.default_rng(seed)
        for _ in range(100):
            indices = order.integers(0, 300, 16)
            batch = reader.read(indices)
            failures.extend(
                i for i, r in zip(indices.tolist(), batch, strict=True) if bytes(r) != raw(i)
            )

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert reader.stats()["records"] == 8 * 100 * 16


def test_threads_that_open_a_reader_at_once_use_the_same_one(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read first is counted too: both threads are in the middle of opening."""
    reader = ffrecord.open(plain)
    open_files = _ffrecord.RecordReader.open
    both_are_here = threading.Barrier(2)

    def open_together(*args: object, **kwargs: object) -> _ffrecord.RecordReader:
        both_are_here.wait(60)
        return open_files(*args, **kwargs)

    monkeypatch.setattr(_ffrecord.RecordReader, "open", open_together)
    threads = [threading.Thread(target=reader.read, args=([1, 2, 3],)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert reader.stats()["records"] == 6


def read_in_child(reader: ffrecord.Reader, indices: list[int]) -> list[bytes]:
    return [bytes(record) for record in reader.read(indices)]


@pytest.mark.parametrize("method", START_METHODS)
def test_a_reader_used_before_works_in_children(plain: Path, method: str) -> None:
    reader = ffrecord.open(plain)
    assert bytes(reader[0]) == raw(0)
    indices = [5, 250, 5]

    with multiprocessing.get_context(method).Pool(3) as pool:
        results = pool.starmap(read_in_child, [(reader, indices)] * 6)

    assert results == [[raw(i) for i in indices]] * 6
    assert bytes(reader[1]) == raw(1)


def test_a_forked_child_uses_the_parents_reader_itself(plain: Path) -> None:
    """No pickle in between: the object is inherited, while the parent goes on reading."""
    reader = ffrecord.open(plain)
    reader.read(np.arange(300))
    child = os.fork()
    if child == 0:
        try:
            for i in range(300):
                assert bytes(reader[i]) == raw(i)
            os._exit(0)
        except BaseException:
            os._exit(1)

    for i in range(300):
        assert bytes(reader[i]) == raw(i)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def open_descriptors() -> Iterator[str]:
    for entry in os.scandir("/proc/self/fd"):
        try:
            yield os.readlink(entry.path)
        except FileNotFoundError:
            continue  # The scan's own.


def test_a_failed_open_leaves_no_descriptor(damaged: Path) -> None:
    os.truncate(damaged, 200)
    for _ in range(5):
        with pytest.raises(ffrecord.CorruptionError):
            len(ffrecord.open(damaged))

    assert str(damaged) not in list(open_descriptors())


def test_import_is_light() -> None:
    code = "import sys, ffrecord; print(*sys.modules)"

    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    modules = output.stdout.decode().split()
    for heavy in ("torch", "click", "rich", "multiprocessing.pool"):
        assert heavy not in modules


def test_relative_paths_are_those_of_the_folder_they_were_given_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there[1]"):
        (tmp_path / name).mkdir()
        with ffrecord.Writer(tmp_path / name / "a.ffr", key=True) as writer:
            writer.write(name.encode(), key="k")
    monkeypatch.chdir(tmp_path / "there[1]")
    pattern = ffrecord.open("*.ffr")
    monkeypatch.chdir(tmp_path / "here")
    reader = ffrecord.open("a.ffr")
    pickled = pickle.dumps(reader)
    writer = ffrecord.Writer("b.ffr", key=True)
    writer.write(b"x", key="x")

    monkeypatch.chdir(tmp_path / "there[1]")
    writer.close()

    assert bytes(reader[0]) == b"here"
    assert bytes(pickle.loads(pickled)[0]) == b"here"
    assert bytes(pattern[0]) == b"there[1]"
    assert bytes(ffrecord.open(tmp_path / "here" / "b.ffr")[0]) == b"x"


def test_an_interrupt_ends_a_huge_read_and_the_reader_goes_on(plain: Path) -> None:
    indices = np.arange(6_000_000) * 7 % 300
    for direct in (False, True):
        reader = ffrecord.open(plain, direct=direct)
        len(reader)
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.1):
            reader.read(indices)
        # It was broken off, and did not first come to its end.
        assert reader.stats()["batches"] == 0
        assert list(map(bytes, reader.read([299, 0, 7]))) == [raw(299), raw(0), raw(7)]


@pytest.mark.parametrize("direct", [False, True])
def test_a_handler_may_read_and_let_the_read_go_on(plain: Path, direct: bool) -> None:
    reader, seen = ffrecord.open(plain, direct=direct), []
    indices = np.arange(1_000_000) * 7 % 300

    def handler(*_: object) -> None:
        seen.append(bytes(reader.read([7])[0]))

    with interrupted_after(0.06):
        signal.signal(signal.SIGINT, handler)
        while not seen:  # On a busy machine it comes late.
            batch = reader.read(indices)
    assert seen == [raw(7)]
    assert len(batch) == indices.size
    assert bytes(batch[999_999]) == raw(999_999 * 7 % 300)


def test_other_threads_read_on_while_the_main_one_is_interrupted(plain: Path) -> None:
    reader, indices, done = ffrecord.open(plain), np.arange(1_000_000) % 300, []
    other = threading.Thread(target=lambda: done.append(len(reader.read(indices))))
    with pytest.raises(KeyboardInterrupt), interrupted_after(0.1):
        other.start()
        reader.read(np.arange(6_000_000) % 300)
    other.join()
    assert done == [1_000_000]
    assert reader.stats()["batches"] == 1


@pytest.mark.parametrize(("start", "stop"), [(-1, None), (0, -1), (-(2**63), 5)])
def test_batches_refuse_negative_bounds(plain: Path, start: int, stop: int | None) -> None:
    with pytest.raises(ValueError, match="below 0"):
        next(ffrecord.open(plain).batches(7, start=start, stop=stop))


@pytest.mark.parametrize("where", [b"a.ffr", 5, None])
def test_what_is_no_path_is_named(where: Any) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match=r"not a path: .*; give str"):
        ffrecord.open(where)


def test_a_path_with_a_zero_byte_is_not_the_file_before_it(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zero byte"):
        len(ffrecord.open(f"{plain}\0.csv"))
    with pytest.raises(ValueError, match="zero byte"):
        ffrecord.Writer(f"{tmp_path}/made\0.ffr").close()
    assert not list(tmp_path.iterdir())
