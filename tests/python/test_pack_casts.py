"""Goal: `--cast` and names of columns keep every value, or refuse it.

Method: values at the edges of pairs of types, packed in this process and read back; names that look
like those of stored columns.
"""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from ffrecord.pack import SourceOptions, open_source, pack

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NOON = dt.datetime(2020, 1, 1, 12)
DAY = dt.datetime(2020, 1, 1)
NAN = float("nan")

# Of a value, the type it has and the one it is cast to; and what is read, None for an error.
CASTS: list[tuple[Any, Any, str, Any]] = [
    (5, pa.int64(), "bool", None),
    (1, pa.int64(), "bool", True),
    (0.5, pa.float64(), "bool", None),
    ([1, 2], pa.list_(pa.int64()), "bool[2]", None),
    ([1, 0], pa.list_(pa.int64()), "bool[2]", [True, False]),
    ([1e300, 1.0], pa.list_(pa.float64()), "f32[2]", None),
    ([0.1, NAN], pa.list_(pa.float64()), "f64[2]", [0.1, NAN]),
    (NOON, pa.timestamp("us"), "date32", None),
    (DAY, pa.timestamp("us"), "date32", DAY.date()),
    (NOON, pa.timestamp("us"), "date64", None),
    (NOON, pa.timestamp("us"), "time64[us]", None),
    (NOON, pa.timestamp("us"), "timestamp[s]", NOON),
    (2049, pa.int64(), "f16", None),
    (2048, pa.int64(), "f16", 2048.0),
    (2049.5, pa.float64(), "f16", 2050.0),
    (257, pa.int64(), "bf16", None),
    (256, pa.int64(), "bf16", 256.0),
    (1.501, pa.float64(), "bf16", 1.5),
    (Decimal("12345678901234567890.10"), pa.decimal128(22, 2), "f64", None),
    (Decimal("0.10"), pa.decimal128(3, 2), "f64", 0.1),
    (Decimal("2.00"), pa.decimal128(3, 2), "i64", 2),
    (Decimal("2.50"), pa.decimal128(3, 2), "i64", None),
    (NAN, pa.float64(), "f32", NAN),
    (NAN, pa.float64(), "utf8", "nan"),
    (1e300, pa.float64(), "utf8", "1e+300"),
    (b"ab", pa.binary(2), "bytes", b"ab"),
    (dt.time(1, 2), pa.time64("us"), "utf8", "01:02:00.000000"),
    (None, pa.null(), "i64", None),
    ("16777217", pa.string(), "f32", None),
    ("16777216", pa.string(), "f32", 16777216.0),
    ("9007199254740993", pa.string(), "f64", None),
    ("0.1", pa.string(), "f64", 0.1),
    ("257", pa.string(), "bf16", None),
    ("256", pa.string(), "bf16", 256.0),
    (["1", "2049"], pa.list_(pa.string()), "f16[2]", None),
]


@pytest.mark.parametrize(("value", "kind", "wanted", "read"), CASTS)
def test_a_cast_keeps_a_value_or_refuses_it(
    tmp_path: Path, value: object, kind: object, wanted: str, read: object
) -> None:
    pq.write_table(pa.table({"a": pa.array([value, None], kind)}), tmp_path / "a.parquet")
    source, made = tmp_path / "a.parquet", tmp_path / "b.ffr"
    options = SourceOptions(cast=(("a", wanted),))

    if read is None and value is not None:
        with pytest.raises(ValueError, match=r"the column 'a' is .*, and cannot be"):
            pack(open_source(source, options), made)
        assert not made.exists()
        return
    pack(open_source(source, options), made)

    found = ffrecord.read_table(made)["a"].to_pylist()
    assert repr(found) == repr([read, None])  # NaN is not equal to itself.


def test_a_cast_to_bf16_makes_a_column_of_bf16(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.501, None], "b": [[1.5, 2.0]] * 2}), tmp_path / "a.parquet")
    options = SourceOptions(cast=(("a", "bf16"), ("b", "bf16[2]")))
    pack(open_source(tmp_path / "a.parquet", options), tmp_path / "b.ffr")
    with ffrecord.open(tmp_path / "b.ffr") as reader:
        assert [column.spelling for column in reader.columns] == ["bf16?", "bf16[2]"]


def test_files_with_and_without_bf16_are_no_files_of_one_column(tmp_path: Path) -> None:
    marked = pa.schema([pa.field("a", pa.float32(), metadata={"ffrecord.type": "bf16"})])
    numbers = pa.array([1.501], pa.float32())
    paths = [tmp_path / "a.arrow", tmp_path / "b.arrow"]
    for path, schema in zip(paths, (marked, pa.schema([("a", pa.float32())])), strict=True):
        with pa.ipc.new_file(path, schema) as writer:
            writer.write_table(pa.table([numbers], schema=schema))
    for one, two in (paths, paths[::-1]):
        with pytest.raises(ValueError, match="bf16"):
            pack([one, two], tmp_path / "c.ffr")


@pytest.mark.parametrize("names", [("x:valid", "x"), ("s{a}", "s{b}"), ("s{t}",)])
def test_a_column_is_not_taken_for_a_part_of_another(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    arrays = {name: np.array([True, False, True]) for name in names}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=r"a\.npz.* called '.*' would be read as a part of"):
        pack(tmp_path / "a.npz", tmp_path / "b.ffr")
    np.savez(tmp_path / "a.npz", **dict.fromkeys(("l", "l[]", "y:valid"), np.arange(3)))
    pack(tmp_path / "a.npz", tmp_path / "c.ffr")
    assert ffrecord.read_table(tmp_path / "c.ffr").column_names == ["l", "l[]", "y:valid"]
