"""Goal: a reader returns what was written, in the order asked for, or says what it could not.

Method: small files of known records are written, then read whole, by batches, and by every name
that files have.
"""

import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ffrecord
from reading import SCHEMA, plain_file, raw, sample, typed_file


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return typed_file(tmp_path_factory.mktemp("typed"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_file(tmp_path_factory.mktemp("plain"))


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
    for no_sequence in (3.0, None, {1, 2}, iter([1])):
        with pytest.raises(TypeError, match=f"type {type(no_sequence).__name__}"):
            reader.read(no_sequence)  # type: ignore[arg-type]


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
    reader = ffrecord.Reader(path)  # `open` has looked whether it is there.
    assert "not opened" in repr(reader)
    with ffrecord.Writer(path) as writer:
        writer.write(b"now")

    assert "not opened" in repr(ffrecord.open(path))
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
