"""Goal: tables in text, in NumPy's files and in saved datasets become records as they are.

Method: files that Python's csv, NumPy and pyarrow write, compared with what these read; values that
look like numbers and are names; damage and files that do not fit; and one list of kinds for all.
"""

import csv
import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from cli import ok
from ffrecord.errors import CorruptionError
from ffrecord.pack import SourceOptions, open_source, pack
from ffrecord.pack._kinds import KINDS, as_markdown
from packing import records, refused

pytestmark = pytest.mark.wrong_data

ROOT = Path(__file__).parents[2]

pa = pytest.importorskip("pyarrow")

# Texts of a column, and what is packed.
TEXTS: dict[str, tuple[list[str], list[Any]]] = {
    "integers": (["1", "-5", "0"], [1, -5, 0]),
    "ids": (["007", "8", "9"], ["007", "8", "9"]),
    "signs": (["+1", "2", "3"], ["+1", "2", "3"]),
    "spaces": ([" 1", "2", "3"], [" 1", "2", "3"]),
    "large": (["12345678901234567890", "1", "2"], ["12345678901234567890", "1", "2"]),
    "floats": (["1.5", "-0.25", "3"], [1.5, -0.25, 3.0]),
    "prices": (["1.90", "2.10", "3.00"], [1.9, 2.1, 3.0]),
    "halves": (["1.0", "2.25", "3"], [1.0, 2.25, 3.0]),
    "versions": (["1.9", "1.10", "2.0"], ["1.9", "1.10", "2.0"]),
    "sections": (["1", "1.10", ""], ["1", "1.10", None]),
    "digits": (["0.1234567890123456789", "1", "2"], ["0.1234567890123456789", "1", "2"]),
    "nanoseconds": (["1700000000.123456789", "1", "2"],) * 2,
    "degrees": (
        ["51.300000000000004", "12345678901234.125", "3"],
        [51.300000000000004, 12345678901234.125, 3.0],
    ),
    "powers": (["1e5", "2", "3"], ["1e5", "2", "3"]),
    "truth": (["true", "false", "true"], [True, False, True]),
    "words": (["NA", "nan", "x"], ["NA", "nan", "x"]),
    "dates": (["2020-01-01", "2020-01-02", "2020-01-03"],) * 2,
    "gaps": (["1", "", "3"], [1, None, 3]),
    "quoted": (['a,"b"', "line\nbreak", "grün"],) * 2,
}


def written(path: Path, columns: dict[str, list[str]], delimiter: str = ",") -> Path:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "a.tsv.gz"])
def test_columns_of_text_have_numbers_only_if_all_are_written_so(name: str, tmp_path: Path) -> None:
    columns = {column: list(texts) for column, (texts, _) in TEXTS.items()}
    source = written(tmp_path / name, columns, "\t" if "tsv" in name else ",")

    ok("ffrecord-pack", source, tmp_path / "x.ffr")

    table = ffrecord.read_table(tmp_path / "x.ffr")
    assert {name: table[name].to_pylist() for name in TEXTS} == {
        name: values for name, (_, values) in TEXTS.items()
    }


def test_an_empty_text_is_not_null(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n"",1\n,2\nx,3\n')
    ok("ffrecord-pack", tmp_path / "a.csv", tmp_path / "x.ffr")
    assert ffrecord.read_table(tmp_path / "x.ffr")["a"].to_pylist() == ["", None, "x"]


def test_types_are_those_of_all_rows_of_all_files(tmp_path: Path) -> None:
    one = written(tmp_path / "1.csv", {"x": ["1"] * 50_000, "y": ["2"] * 50_000})
    two = written(tmp_path / "2.csv", {"x": ["2"] * 99 + ["no"], "y": ["1.5"] * 100})

    pack([one, two], tmp_path / "x.ffr")
    pack([one, two], tmp_path / "parts", workers=2)

    for place in ("x.ffr", "parts"):
        table = ffrecord.read_table(tmp_path / place)
        assert table["x"].to_pylist() == ["1"] * 50_000 + ["2"] * 99 + ["no"]
        assert table["y"].to_pylist() == [2.0] * 50_000 + [1.5] * 100
    pack(open_source(one), tmp_path / "one.ffr")
    assert ffrecord.open(tmp_path / "one.ffr").schema == {"x": "i64", "y": "i64"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a,a\n1,2\n", "several columns called 'a'"),
        (b"a,b\n1\n", "Expected 2 columns, got 1"),
        (b"a\n\xff\n", "UTF"),
        (b"a,b\n", "nothing to pack"),
    ],
)
def test_a_text_that_is_no_table_is_refused(text: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(text)
    message = refused(2, tmp_path / "a.csv", tmp_path / "x.ffr")
    assert said in message
    written(tmp_path / "b.csv", {"x": ["1"]})
    written(tmp_path / "c.csv", {"y": ["1"]})
    message = refused(2, tmp_path / "b.csv", tmp_path / "c.csv", tmp_path / "x.ffr")
    assert "c.csv has the columns y, and" in message


def test_a_cut_stream_of_text_is_damage(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv.gz", {"x": [str(i) for i in range(9999)]})
    path.write_bytes(path.read_bytes()[:-9])
    assert "a.csv.gz is damaged or truncated" in refused(3, path, tmp_path / "x.ffr")


ARRAYS: dict[str, Any] = {
    "u8": np.arange(12, dtype="u1").reshape(3, 2, 2),
    "f2": np.arange(3, dtype="f2"),
    "big_endian": np.arange(3, dtype=">i4"),
    "bool": np.array([True, False, True]),
    "text": np.array(["grün", "", "x"]),
}


def test_arrays_become_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)
    np.savez_compressed(tmp_path / "b.npz", **ARRAYS)
    np.save(tmp_path / "a.npy", ARRAYS["u8"])

    for name in ("a", "b"):
        ok("ffrecord-pack", tmp_path / f"{name}.npz", tmp_path / f"{name}.ffr")
        for row, sample in enumerate(ffrecord.open(tmp_path / f"{name}.ffr")):
            for column, array in ARRAYS.items():
                assert np.array_equal(sample[column], array[row]), column
    ok("ffrecord-pack", tmp_path / "a.npy", tmp_path / "c.ffr")
    found = [sample["value"].tolist() for sample in ffrecord.open(tmp_path / "c.ffr")]
    assert found == ARRAYS["u8"].tolist()


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.arange(3), "y": np.arange(2)}, "arrays differ in their rows: x has 3, y has 2"),
        ({"x": np.array(3)}, "'x' is one number"),
        ({"x": np.array([1j])}, "'x' has complex128"),
        ({"x": np.array([{}], object)}, "are not unpickled"),
    ],
)
def test_arrays_that_are_no_columns_are_refused(
    arrays: dict[str, Any], said: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    assert said in refused(2, tmp_path / "a.npz", tmp_path / "x.ffr")


def test_a_cut_array_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(99))
    np.save(tmp_path / "b.npy", np.arange(99))
    for path in (tmp_path / "a.npz", tmp_path / "b.npy"):
        path.write_bytes(path.read_bytes()[:-50])
        with pytest.raises(CorruptionError, match=path.name):
            pack(path, tmp_path / "x.ffr")
        assert not (tmp_path / "x.ffr").exists()


def saved(folder: Path, tables: list[Any]) -> Path:
    """A folder as `Dataset.save_to_disk` leaves it."""
    folder.mkdir()
    names = [f"data-{i:05}-of-{len(tables):05}.arrow" for i in range(len(tables))]
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    for name, table in zip(names, tables, strict=True):
        marked = table.replace_schema_metadata(told)
        sink = pa.OSFile(str(folder / name), "wb")
        with sink, pa.ipc.new_stream(sink, marked.schema) as writer:
            writer.write_table(marked, max_chunksize=3)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def test_a_saved_dataset_keeps_its_rows_and_classes(tmp_path: Path) -> None:
    tables = [
        pa.table({"label": pa.array([i % 2, None]), "text": [f"a{i}", None], "n": [[i], []]})
        for i in range(3)
    ]
    source = saved(tmp_path / "set", tables)

    line = ok("ffrecord-pack", source, tmp_path / "x.ffr")

    assert "2 classes: 0 cat, 1 dog" in line
    assert (
        ffrecord.read_table(tmp_path / "x.ffr").to_pylist() == pa.concat_tables(tables).to_pylist()
    )
    assert json.loads(ffrecord.open(tmp_path / "x.ffr").metadata()["classes"]) == ["cat", "dog"]


def test_a_saved_dataset_that_is_not_what_its_files_hold_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "set", [pa.table({"label": [0]})])
    state = json.loads((source / "state.json").read_text())
    for changed, said in (
        ({**state, "_indices_data_files": [{"filename": "i.arrow"}]}, "flatten_indices"),
        ({**state, "_data_files": [{"filename": "../x.arrow"}]}, "leads outside"),
        ({**state, "_data_files": []}, "nothing to pack"),
        ({}, "names no files"),
    ):
        (source / "state.json").write_text(json.dumps(changed))
        assert said in refused(2, source, tmp_path / "x.ffr")
    splits = tmp_path / "splits"
    splits.mkdir()
    (splits / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert "has the splits train, test: pack each" in refused(2, splits, tmp_path / "x.ffr")


def test_one_list_of_kinds_is_in_messages_help_and_documentation(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nothing that is known")
    message = refused(2, tmp_path / "x", tmp_path / "x.ffr")
    help_text = " ".join(ok("ffrecord-pack", "--help").split())
    page = (ROOT / "docs/guides/packing.md").read_text()
    for kind in KINDS:
        assert kind.shown in message
        assert kind.shown in help_text
    assert as_markdown() in page


def test_a_split_of_a_saved_dataset_is_asked_for(tmp_path: Path) -> None:
    whole = tmp_path / "splits"
    whole.mkdir()
    for name, count in (("train", 3), ("test", 1)):
        saved(whole / name, [pa.table({"label": [0] * count, "text": [name] * count})])
    (whole / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')

    ok("ffrecord-pack", whole, tmp_path / "x.ffr", "--split", "train")
    pack(open_source(whole, SourceOptions(split="test")), tmp_path / "parts")

    assert ffrecord.read_table(tmp_path / "x.ffr")["text"].to_pylist() == ["train"] * 3
    assert ffrecord.read_table(tmp_path / "parts")["text"].to_pylist() == ["test"]
    message = refused(2, whole / "train", tmp_path / "y.ffr", "--split", "test")
    assert "has no splits, such as test" in message


def _litdata_of(folder: Path, form: str, values: list[bytes]) -> Path:
    """One chunk of samples with a number, and values of that form."""
    folder.mkdir()
    samples = [
        struct.pack("<2Iq", 8, len(value), number) + value for number, value in enumerate(values)
    ]
    ends = np.cumsum([4 + 4 * (len(samples) + 1), *map(len, samples)]).astype("<u4")
    head = struct.pack("<I", len(samples)) + ends.tobytes()
    (folder / "chunk-0-0.bin").write_bytes(head + b"".join(samples))
    spec = {"type": None, "context": None, "children_spec": []}
    names = {"type": "builtins.dict", "context": '["n", "x"]', "children_spec": [spec, spec]}
    config = {"data_format": ["int", form], "data_spec": json.dumps([1, names])}
    chunk = {"filename": "chunk-0-0.bin", "chunk_size": len(samples)}
    (folder / "index.json").write_text(json.dumps({"chunks": [chunk], "config": config}))
    return folder


BF16, EMPTY = struct.pack(">3I", 10, 1, 1) + b"\x80\x3f", struct.pack("<4I", 1, 2, 0, 3)
SHAPED = [struct.pack("<3I", 1, 1, size) + bytes(2 * size) for size in (1, 2)]


@pytest.mark.parametrize(
    ("form", "values", "said"),
    [
        ("tensor", [BF16, BF16], "has arrays of the type 10 of litdata"),
        ("no_header_tensor:10", [b"\x80\x3f"], "is encoded as no_header_tensor:10"),
        ("no_header_numpy:11", [bytes(8)], "is encoded as no_header_numpy:11"),
        ("numpy", [EMPTY], r"has arrays of the shape \(0, 3\)"),
        ("numpy", SHAPED, r"'x' has arrays that are int16 of shape \(1,\), int16 of shape \(2,\)"),
    ],
)
def test_arrays_of_litdata_that_no_record_holds_are_no_damage_and_can_be_dropped(
    form: str, values: list[bytes], said: str, tmp_path: Path
) -> None:
    folder = _litdata_of(tmp_path / "lit", form, values)
    with pytest.raises(ValueError, match=f"'x' .*{said}.*--drop" if "'x'" not in said else said):
        pack(folder, tmp_path / "x")
    pack(open_source(folder, SourceOptions(drop=("x",))), tmp_path / "y.ffr")
    assert records(tmp_path / "y.ffr") == [{"n": n} for n in range(len(values))]
