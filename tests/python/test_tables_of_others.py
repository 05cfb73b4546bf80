"""Goal: a table that others made comes back as it was, or is refused before anything is written.

Method: dictionaries of all kinds, maps that name their pairs otherwise, and data that are not
valid, forged buffer by buffer; what is written must be readable, in whatever batches.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
import ffrecord.grain
from ffrecord.torch import Dataset

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")


def dictionary(indices: list[int | None], values: Any, ordered: bool = False) -> Any:  # noqa: ANN401
    kinds = pa.array(indices, pa.int8())
    return pa.DictionaryArray.from_arrays(kinds, values, ordered=ordered)


def tables(column: Any) -> Iterator[Any]:  # noqa: ANN401
    """The column as a table, and as a stream."""
    table = pa.table({"c": column})
    yield table
    yield table.to_reader()


@pytest.mark.parametrize(
    "values",
    [
        *(pa.array(["a", None], pa.string_view()), pa.array([b"a", b"bc"], pa.binary_view())),
        *(pa.array([1, 2], pa.decimal128(5, 1)), pa.array([1, 2], pa.timestamp("s", "UTC"))),
    ],
)
def test_dictionaries_of_many_kinds_come_back(values: Any, tmp_path: Path) -> None:  # noqa: ANN401
    column = dictionary([1, 0, None, 1], values)
    for number, made in enumerate(tables(column)):
        ffrecord.write_table(made, tmp_path / f"{number}.ffr")
        found = ffrecord.read_table(tmp_path / f"{number}.ffr")

        assert found["c"].type == column.type
        assert found["c"].to_pylist() == column.to_pylist()


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (lambda: dictionary([0, 1], pa.array([[1], [2]])), "makes no dictionaries of such values"),
        (lambda: dictionary([0], pa.array([{"a": 1}])), "makes no dictionaries of such values"),
        (lambda: dictionary([0], pa.array([1], pa.decimal32(4, 1))), "makes no dictionaries"),
        (lambda: dictionary([1, 0], pa.array(["low", "high"]), ordered=True), "order .* be lost"),
        (
            lambda: pa.StructArray.from_arrays(
                [dictionary([0], pa.array(["x"]), ordered=True)], ["a"]
            ),
            r"column 'c\{a\}' is dictionary.*order",
        ),
    ],
)
def test_dictionaries_that_could_not_be_made_again_are_refused(
    column: Any,  # noqa: ANN401
    said: str,
    tmp_path: Path,
) -> None:
    for made in tables(column()):
        with pytest.raises(ValueError, match=said):
            ffrecord.write_table(made, tmp_path / "t.ffr")
        assert not (tmp_path / "t.ffr").exists()


def test_dictionaries_that_differ_from_chunk_to_chunk_are_read_in_parts(tmp_path: Path) -> None:
    parts = [dictionary(list(range(100)), pa.array([f"{a}{i}" for i in range(100)])) for a in "xyz"]
    table = pa.table({"c": pa.chunked_array(parts)})
    ffrecord.write_table(table, tmp_path / "t.ffr")

    found = ffrecord.read_table(tmp_path / "t.ffr")
    assert found.schema.equals(table.schema)
    assert found.to_pylist() == table.to_pylist()
    reader = ffrecord.open(tmp_path / "t.ffr")
    assert reader.read(range(128)).to_arrow()["c"].to_pylist() == table["c"].to_pylist()[:128]
    with pytest.raises(ValueError, match=r"129 different values in one batch.*read fewer records"):
        reader.read(range(129)).to_arrow()


def test_a_schema_with_a_dictionary_that_cannot_be_made_is_not_believed(tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int8(), pa.list_(pa.field("item", pa.int8(), False)))
    stored = pa.schema({"x": kind}).serialize().to_pybytes()
    schema = {"x[]:i8": "bytes"}
    with ffrecord.Writer(tmp_path / "t.ffr", schema, metadata={"ARROW:schema": stored}) as writer:
        writer.write({"x[]:i8": b"\1\2"})

    assert ffrecord.read_table(tmp_path / "t.ffr").to_pylist() == [{"x": [1, 2]}]


def test_maps_come_back_whatever_they_call_their_pairs(tmp_path: Path) -> None:
    kind = pa.map_(pa.field("keys", pa.string(), False), pa.field("values", pa.int8(), False))
    column = pa.array([[("a", 1), ("b", 2)], None, []], kind)
    for number, made in enumerate(tables(column)):
        ffrecord.write_table(made, tmp_path / f"{number}.ffr")
        found = ffrecord.read_table(tmp_path / f"{number}.ffr")

        assert found["c"].type == kind
        assert found["c"].to_pylist() == column.to_pylist()


class Forged:
    """A table whose offsets change after pyarrow has looked at them."""

    def __init__(self, kind: Any, offsets: list[int], data: bytes) -> None:  # noqa: ANN401
        self.offsets = offsets
        self.places = np.zeros(len(offsets), np.int64 if "large" in str(kind) else np.int32)
        is_list = pa.types.is_list(kind)
        buffers = [None, pa.py_buffer(self.places), *([] if is_list else [pa.py_buffer(data)])]
        children = [pa.array(list(data), pa.int8())] if is_list else None
        self.column = pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=children)

    def tables(self) -> Iterator[Any]:
        """The column as `tables` has it, forged as soon as it is made."""
        for made in tables(self.column):
            self.places[:] = self.offsets
            yield made
            self.places[:] = 0


@pytest.mark.parametrize(
    ("kind", "offsets"),
    [
        *((pa.binary(), [0, -1, 3]), (pa.binary(), [0, 3, 1]), (pa.binary(), [0, 3, 2**31 - 1])),
        (pa.binary(), [2**31 - 3, 2**31 - 2, 2**31 - 1]),
        (pa.large_binary(), [0, 2**40, 2**40 + 1]),
        *((pa.list_(pa.int8()), bad) for bad in ([0, -1, 3], [0, 3, 1], [0, 3, 2**31 - 1])),
    ],
)
def test_forged_offsets_read_no_memory_of_others(
    kind: Any,  # noqa: ANN401
    offsets: list[int],
    tmp_path: Path,
) -> None:
    for made in Forged(kind, offsets, b"abc").tables():
        with pytest.raises(ValueError, match="column 'c' is not valid as Arrow's: "):
            ffrecord.write_table(made, tmp_path / "t.ffr")
        assert not (tmp_path / "t.ffr").exists()


BAD_TEXT = pa.array([b"a", b"\xff"]).view(pa.string())


@pytest.mark.parametrize(
    "column",
    [
        *(BAD_TEXT, pa.StructArray.from_arrays([BAD_TEXT], ["s"]), dictionary([0, 1], BAD_TEXT)),
        pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), BAD_TEXT),
        pa.DictionaryArray.from_arrays(pa.array([0, 9], pa.int8()), pa.array(["a"]), safe=False),
    ],
)
def test_data_that_are_not_valid_are_refused_before_they_are_stored(
    column: Any,  # noqa: ANN401
    tmp_path: Path,
) -> None:
    for made in tables(column):
        with pytest.raises(ValueError, match="column 'c' is not valid as Arrow's: "):
            ffrecord.write_table(made, tmp_path / "t.ffr")
        assert not (tmp_path / "t.ffr").exists()


def test_a_stream_whose_batches_are_of_another_schema_is_refused(tmp_path: Path) -> None:
    batches = [pa.record_batch({"a": [1]}), pa.record_batch({"b": [1]})]
    stream = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))

    with pytest.raises(ValueError, match=r"schema b: int64, and the file was begun with a: int64"):
        ffrecord.write_table(stream, tmp_path / "t.ffr")
    assert not (tmp_path / "t.ffr").exists()


def test_one_text_is_not_taken_for_the_columns_of_its_letters(tmp_path: Path) -> None:
    path = tmp_path / "t.ffr"
    ffrecord.write_table(pa.table({"a": [1], "b": [2], "ab": [3]}), path)

    assert ffrecord.read_table(path, columns=["ab"]).to_pylist() == [{"ab": 3}]
    for read in (ffrecord.read_table, Dataset, ffrecord.grain.DataSource):
        with pytest.raises(TypeError, match=r"columns=\['ab'\]"):
            read(path, columns="ab")
