"""Goal: files that other libraries write become records of exactly what these libraries read.

Method: each kind is written by the library that defines it. Values are compared, in parts of any
size and by any number of workers; damage, and what records cannot hold, is refused by name.
"""

import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuttable
import ffrecord
from ffrecord.errors import CorruptionError
from ffrecord.pack import SourceOptions, maps, open_source, pack
from packing import contents, plain, records

COUNT = 300

pytestmark = pytest.mark.wrong_data


def hdf5(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Numbers of several shapes, text, and lists, some of it compressed."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    boxes = np.arange(COUNT * 6, dtype="f4").reshape(COUNT, 2, 3)
    lists = [np.arange(n % 4, dtype="i4") for n in range(COUNT)]
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("boxes", data=boxes, chunks=(32, 2, 3), compression="gzip")
        file["big endian"] = np.arange(COUNT, dtype=">i2")
        file["even"] = np.arange(COUNT) % 2 == 0
        file["group/text"] = [f"grün {n}" for n in range(COUNT)]
        file["group/short"] = np.array([b"ab", b"c"] * (COUNT // 2))
        made = file.create_dataset("lists", (COUNT,), h5py.vlen_dtype("i4"))
        for number, each in enumerate(lists):
            made[number] = each
        file["linked"] = h5py.SoftLink("/boxes")
    return folder / "a.h5", [
        {
            "big endian": n,
            "boxes": boxes[n].tolist(),
            "even": n % 2 == 0,
            "group/short": "c" if n % 2 else "ab",
            "group/text": f"grün {n}",
            "lists": lists[n].tolist(),
        }
        for n in range(COUNT)
    ]


def lmdb(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Entries that were written in another order than that of their keys."""
    library = pytest.importorskip("lmdb", reason="lmdb is not installed")
    rows = [{"key": b"%05d" % n, "value": b"v" * (n * 7 % 999)} for n in range(COUNT)]
    with library.open(str(folder / "db"), map_size=1 << 24) as env, env.begin(write=True) as txn:
        for row in reversed(rows):
            txn.put(row["key"], row["value"])
    return folder / "db", rows


def array_record(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Records of any bytes, in groups."""
    module = _array_record()
    rows = [b"%d" % n * (n % 50) for n in range(COUNT)]
    return _written(module, folder, rows), [{"payload": row} for row in rows]


def array_record_of_examples(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Messages of a text, a number, a vector, and a list of any length."""
    rows = cuttable.examples()
    pack_first = folder / "a.tfrecord"
    pack_first.write_bytes(b"".join(map(cuttable.framed, rows)))
    pack(pack_first, folder / "wanted.ffr")
    return _written(_array_record(), folder, rows), records(folder / "wanted.ffr")


def _array_record() -> Any:  # noqa: ANN401
    name = "array_record.python.array_record_module"
    return pytest.importorskip(name, reason="array_record is not installed")


def _written(module: Any, folder: Path, rows: list[bytes]) -> Path:  # noqa: ANN401
    path = folder / "a.array_record-00000-of-00001"
    writer = module.ArrayRecordWriter(str(path), "group_size:16")
    for row in rows:
        writer.write(row)
    writer.close()
    return path


def lance(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Several fragments, from which rows were deleted."""
    library = pytest.importorskip("lance", reason="lance is not installed")
    pa = pytest.importorskip("pyarrow")
    rows = [
        {"id": n, "tags": ["a"] * (n % 3), "score": None if n % 7 else n / 2} for n in range(COUNT)
    ]
    path = folder / "a.lance"
    made = library.write_dataset(pa.Table.from_pylist(rows), str(path), max_rows_per_file=80)
    made.delete("id >= 100 and id < 110")
    return path, [row for row in rows if not 100 <= row["id"] < 110]


def litdata(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Samples of every kind of value that is packed, in several chunks."""
    writer = pytest.importorskip("litdata.streaming.writer", reason="litdata is not installed")
    torch = pytest.importorskip("torch")
    made = writer.BinaryWriter(str(folder / "lit"), chunk_size=64)
    rows = []
    for n in range(COUNT):
        sample: dict[str, Any] = {"n": n, "text": f"grün {n}", "part": n / 4, "even": n % 2 == 0}
        sample |= {"data": b"x" * n, "inner": {"list": np.arange(n % 5, dtype="u2")}}
        arrays = {"box": np.full((2, 3), n, "f4"), "tensor": torch.full((3, 1), n)}
        made[n] = {**sample, **arrays, "ids": torch.arange(n % 3)}
        row = {**sample, "inner/list": list(range(n % 5)), "ids": list(range(n % 3))}
        del row["inner"]
        rows.append({**row, "box": [[float(n)] * 3] * 2, "tensor": [[n]] * 3})
    made.done()
    made.merge()
    return folder / "lit", rows


SOURCES: dict[str, Callable[[Path], tuple[Path, list[dict[str, Any]]]]] = {
    "HDF5": hdf5,
    "LMDB": lmdb,
    "ArrayRecord": array_record,
    "ArrayRecord of Examples": array_record_of_examples,
    "Lance": lance,
    "LitData": litdata,
}
EACH = pytest.mark.parametrize("kind", SOURCES)


@EACH
def test_records_are_what_the_library_wrote(kind: str, tmp_path: Path) -> None:
    path, rows = SOURCES[kind](tmp_path)
    pack(path, tmp_path / "x.ffr")
    assert records(tmp_path / "x.ffr") == rows


@EACH
@pytest.mark.parametrize("size_bytes", [1, 1500])
def test_parts_of_any_size_make_the_whole(kind: str, size_bytes: int, tmp_path: Path) -> None:
    source: Any = open_source(SOURCES[kind](tmp_path)[0])
    whole = plain(source.samples())
    parts = source.cuts(size_bytes)
    found: list[Any] = []
    for part in parts:
        assert part.first == len(found)
        found += plain(source.samples_of(part, Counter()))
    assert str(found) == str(whole)
    assert len(parts) > 3


@EACH
def test_any_number_of_workers_makes_the_same_files(kind: str, tmp_path: Path) -> None:
    path, rows = SOURCES[kind](tmp_path)
    for workers in (1, 2):
        pack(path, tmp_path / f"{workers}", workers=workers, part_size_bytes=1 << 12)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert records(tmp_path / "1") == rows
    assert len(contents(tmp_path / "1")) > 3


@EACH
def test_a_file_that_was_cut_off_is_damage(kind: str, tmp_path: Path) -> None:
    path, _ = SOURCES[kind](tmp_path)
    file = path / "data.mdb" if path.is_dir() else path
    if kind == "LitData":
        file = path / "chunk-0-1.bin"
    if kind == "Lance":
        file = max((path / "data").iterdir())
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 3 * 2])
    with pytest.raises(CorruptionError, match=path.name):
        pack(path, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def _references(h5: Any, file: Any) -> None:  # noqa: ANN401
    file["x"] = np.arange(3)
    file["r"] = np.array([file["x"].ref] * 3, dtype=h5.ref_dtype)


def _virtual(h5: Any, file: Any) -> None:  # noqa: ANN401
    layout = h5.VirtualLayout((3,), "i8")
    layout[:] = h5.VirtualSource("/etc/passwd", "x", (3,))
    file.create_virtual_dataset("v", layout)


def _outside(h5: Any, file: Any) -> None:  # noqa: ANN401
    file.create_dataset("e", (3,), "u1", external=[("/etc/passwd", 0, 3)])


# What is written, and what is said.
REFUSED: dict[str, tuple[Callable[[Any, Any], None], str]] = {
    "nothing": (lambda h5, file: None, "has no datasets"),
    "rows": (lambda h5, file: file.update({"x": [1], "y": [1, 2]}), "x has 1, y has 2"),
    "a number": (lambda h5, file: file.update({"x": 3}), r"'x' has the shape \(\)"),
    "references": (_references, "'r' has values of type reference"),
    "a link outside": (
        lambda h5, file: file.update({"e": h5.ExternalLink("/etc/passwd", "x")}),
        "'e' is a link to another file",
    ),
    "values outside": (_outside, "'e' has its values in other files"),
    "virtual values": (_virtual, "'v' has its values in other files"),
    "a loop": (lambda h5, file: file.update({"g/again": file["/"]}), "'g/again/' is also ''"),
    "complex": (lambda h5, file: file.update({"x": [1j]}), "'x' has values of type complex128"),
    "opaque": (lambda h5, file: file.update({"x": np.array([b"ab"], "V2")}), r"'x' has .*V2"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_hdf5_has_and_records_have_not_is_refused(what: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    write, said = REFUSED[what]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write(h5py, file)
    with pytest.raises(ValueError, match=said):
        pack(tmp_path / "a.h5", tmp_path / "x")


def test_pickles_and_named_databases_in_lmdb_are_refused(tmp_path: Path) -> None:
    library = pytest.importorskip("lmdb", reason="lmdb is not installed")
    pickled = pickle.dumps({"x": 1})
    with library.open(str(tmp_path / "p"), map_size=1 << 24) as env, env.begin(write=True) as txn:
        txn.put(b"a", b"\x80\x02no.")
        txn.put(b"b", pickled)
    with library.open(str(tmp_path / "n"), map_size=1 << 24, max_dbs=1) as env:
        inner = env.open_db(b"inner")
        with env.begin(write=True) as txn:
            txn.put(b"a", b"b", db=inner)

    with pytest.raises(ValueError, match="the value of b'b' is a pickle"):
        pack(tmp_path / "p", tmp_path / "x")
    with pytest.raises(ValueError, match="databases with names, such as b'inner'"):
        pack(tmp_path / "n", tmp_path / "x")
    pack(open_source(tmp_path / "p", SourceOptions(raw=True)), tmp_path / "x.ffr")
    assert ffrecord.read_table(tmp_path / "x.ffr")["value"].to_pylist()[1] == pickled


def test_entries_are_found_by_their_keys(tmp_path: Path) -> None:
    path, _ = lmdb(tmp_path)
    pack(path, tmp_path / "x.ffr")
    assert ffrecord.open(tmp_path / "x.ffr").find(b"00200") == 200


def tokenizer(folder: Path) -> Path:
    """Words are tokens."""
    library = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = {"[UNK]": 0, "<end>": 1, **{f"w{n}": n + 2 for n in range(50)}}
    made = library.Tokenizer(library.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def texts(folder: Path) -> tuple[Path, list[list[int]]]:
    """Lines of words, and their tokens."""
    numbers = [[(n * 7 + i) % 60 for i in range(n % 11)] for n in range(COUNT)]
    lines = [json.dumps({"text": " ".join(f"w{each}" for each in line)}) for line in numbers]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return folder / "a.jsonl", [[n + 2 if n < 50 else 0 for n in line] for line in numbers]


def test_each_text_becomes_its_tokens(tmp_path: Path) -> None:
    path, wanted = texts(tmp_path)
    pack(path, tmp_path / "x.ffr", map=maps.tokenize(str(tokenizer(tmp_path))))
    table = ffrecord.read_table(tmp_path / "x.ffr")
    assert table["tokens"].to_pylist() == wanted
    assert str(table.schema.field("tokens").type.value_type) == "uint16"


def test_blocks_have_all_tokens_with_any_number_of_workers(tmp_path: Path) -> None:
    path, lines = texts(tmp_path)
    tokenizer(tmp_path)
    function = f"tokenize({str(tmp_path)!r}, block=16, end='<end>')"
    for workers in (1, 2):
        made = tmp_path / f"{workers}"
        pack(path, made, map=function, workers=workers, part_size_bytes=2000)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    blocks = ffrecord.read_table(tmp_path / "1")["tokens"].to_pylist()
    assert [n for block in blocks for n in block] == [n for line in lines for n in [*line, 1]]
    parts = len(contents(tmp_path / "1")) - 1
    assert sum(len(block) != 16 for block in blocks) <= parts
    assert parts > 3


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tokenizer(tmp_path)
    with pytest.raises(ValueError, match="has no token '<no>'"):
        maps.tokenize(str(path), end="<no>")
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer"):
        maps.tokenize(str(path))


def test_pickles_and_what_leads_outside_litdata_is_refused(tmp_path: Path) -> None:
    writer = pytest.importorskip("litdata.streaming.writer", reason="litdata is not installed")
    made = writer.BinaryWriter(str(tmp_path / "lit"), chunk_size=64)
    for n in range(3):
        made[n] = {"n": n, "object": {1, 2}}
    made.done()
    made.merge()
    with pytest.raises(ValueError, match="the column 'object' is encoded as pickle"):
        pack(tmp_path / "lit", tmp_path / "x")
    pack(open_source(tmp_path / "lit", SourceOptions(drop=("object",))), tmp_path / "x")
    assert records(tmp_path / "x") == [{"n": 0}, {"n": 1}, {"n": 2}]

    index = json.loads((tmp_path / "lit" / "index.json").read_text())
    for name, value, said in (
        ("filename", "../../etc/passwd", "leads outside"),
        ("chunk_size", 4, "has not the 4 samples"),
        ("chunk_size", -1, "has no chunks"),
    ):
        changed = json.loads(json.dumps(index))
        changed["chunks"][0][name] = value
        (tmp_path / "lit" / "index.json").write_text(json.dumps(changed))
        with pytest.raises((ValueError, CorruptionError), match=said):
            pack(open_source(tmp_path / "lit", SourceOptions(drop=("object",))), tmp_path / "y")
