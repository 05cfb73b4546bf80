"""Goal: nothing in an input is left out because its reader does not look at it.

Method: files that were joined, and files with more than one thing of a name, of each kind whose
reader stops at the first end or begins at the last one; whole files of all layouts are packed.
"""

import io
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import ffrecord
from cli import ok
from ffrecord.errors import CorruptionError
from ffrecord.pack import open_source, pack
from packing import refused

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TABLE = pa.table({"a": list(range(1000)), "b": ["x", None] * 500})
OTHER = pa.table({"a": list(range(7)), "b": ["y"] * 7})


def stream(table: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    return sink.getvalue().to_pybytes()


def ipc(table: object, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    written = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_file(sink, table.schema, options=written) as writer:
        writer.write_table(table, max_chunksize=300)
    return sink.getvalue().to_pybytes()


def parquet(table: object, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=300, **options)
    return sink.getvalue()


def array(numbers: range) -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.array(numbers))
    return sink.getvalue()


def members(*pairs: tuple[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of two members of one name.
        for name, data in pairs:
            archive.writestr(zipfile.ZipInfo(name), data)
    return sink.getvalue()


LAYOUTS: dict[str, tuple[str, Callable[[object], bytes]]] = {
    "stream": ("arrows", stream),
    "file": ("arrow", ipc),
    "file, zstd": ("arrow", lambda table: ipc(table, compression="zstd")),
    "Parquet": ("parquet", parquet),
    "Parquet with an index": ("parquet", lambda table: parquet(table, write_page_index=True)),
    "Parquet without dictionaries": ("parquet", lambda table: parquet(table, use_dictionary=False)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tables_that_were_joined_are_refused(tmp_path: Path, layout: str) -> None:
    ending, made = LAYOUTS[layout]
    source = tmp_path / f"a.{ending}"
    for one, two in ((TABLE, TABLE), (TABLE, OTHER), (OTHER, TABLE), (TABLE.slice(0, 0), TABLE)):
        source.write_bytes(made(one) + made(two))
        assert f"a.{ending}" in refused(3, source, tmp_path / "b.ffr")

    source.write_bytes(made(TABLE))
    ok("ffrecord-pack", source, tmp_path / "c.ffr")
    assert ffrecord.read_table(tmp_path / "c.ffr").equals(TABLE)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npy", array(range(3)) + array(range(3, 6)), "behind its first array"),
        ("a.npy", array(range(3)) + b"more", "behind its first array"),
        ("a.npz", members(("x.npy", array(range(3)) * 2)), "behind its first array"),
        ("a.npz", members(("x.npy", array(range(3))), ("x.npy", array(range(3)))), "called 'x'"),
        ("a.npz", members(("x.npy", array(range(3))), ("x", array(range(3)))), "called 'x'"),
        ("a.npz", members(("x.npy", array(range(3))), ("notes.txt", b"notes")), "no array"),
        ("a.npz", members(("x.npy", array(range(3)))) * 2, "several joined"),
    ],
)
def test_arrays_that_a_reader_would_not_see_are_refused(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert said in refused(3, tmp_path / name, tmp_path / "b.ffr")


def test_an_array_of_objects_is_named_as_what_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    assert "not unpickled" in refused(2, tmp_path / "a.npy", tmp_path / "b.ffr")


def test_a_footer_that_is_damaged_anywhere_ends_no_process(tmp_path: Path) -> None:
    """As pyarrow's own look at the columns in it does."""
    lists = pa.array([[1, None], [2, 3]], pa.list_(pa.int32(), 2))
    content = parquet(pa.table({"a.b": lists, "c": ["x", None]}))
    size = int.from_bytes(content[-8:-4], "little")
    path = tmp_path / "a.parquet"
    for at in range(len(content) - 8 - size, len(content) - 8, 3):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with suppress(ValueError, CorruptionError):
            open_source(path)
    path.write_bytes(content)
    pack(path, tmp_path / "b.ffr")
    assert ffrecord.read_table(tmp_path / "b.ffr")["a.b"].to_pylist() == [[1, None], [2, 3]]
