"""Repair keeps nulls as nulls, also where only the metadata of an older commit are left.

Method: append a null to a table without nulls, destroy the end of the file, repair, and read.
"""

from pathlib import Path

import pytest

import ffrecord

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.wrong_data
SCHEMA = pa.schema([("a", pa.list_(pa.float32())), ("b", pa.int64())])
ROWS = [{"a": [0.0, 1.0], "b": 7}, {"a": [0.0, None], "b": None}]


@pytest.mark.parametrize("lost_bytes", [0, 1, 4096, 8192])
def test_nulls_of_an_append_stay_nulls(tmp_path: Path, lost_bytes: int) -> None:
    path, repaired = tmp_path / "a.ffr", tmp_path / "b.ffr"
    ffrecord.write_table(pa.Table.from_pylist(ROWS[:1], SCHEMA), path)
    with ffrecord.Writer(path, append=True) as writer:
        writer.write_table(pa.Table.from_pylist(ROWS[1:], SCHEMA))
    content = bytearray(path.read_bytes())
    content[len(content) - lost_bytes :] = bytes(lost_bytes)
    path.write_bytes(content)

    ffrecord.repair(path, repaired)

    found = ffrecord.read_table(repaired).to_pylist()
    assert found == ROWS[: len(found)]
    assert len(found) == 2 or lost_bytes > 0
