"""Goal: folders are packed as classes only if they are classes, and the names of classes are kept.

Method: trees as datasets are found in: splits, partitions, one folder within each class. Sources
are read in this process.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ffrecord
from cli import ok
from ffrecord.pack import SourceOptions, open_source, pack
from packing import records

pytestmark = pytest.mark.wrong_data


def tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def names_in(root: Path, **options: Any) -> list[str]:  # noqa: ANN401 - of any option
    source = open_source(root, SourceOptions(**options))
    return [sample["name"] for sample, _ in source.samples()]  # type: ignore[index]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train/cats/1", "train/dogs/1", "val/cats/1"], "has train, val, which are not names"),
        (["train/cats/1", "Test/cats/1"], "has Test, train, which"),
        (["train/1", "val/2"], "has train, val"),
        (["train/cats/1"], "has train, which"),
        (["a/cats/1", "a/dogs/2"], "a has no files but 2 folders, such as "),
        (["1/cats/1", "1/dogs/2", "2/3"], "1 has no files but 2 folders"),
        (["date=1/a.parquet", "date=2/b.parquet"], "a.parquet is a dataset"),
        (["x/0.tar"], "0.tar is a dataset"),
        (["x/0.jsonl.gz"], "0.jsonl.gz is a dataset"),
        (["x/0.png", "x/deep/1.TFRecord"], "1.TFRecord is a dataset"),
    ],
)
def test_what_are_no_classes_is_refused(tmp_path: Path, names: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        names_in(tree(tmp_path / "data", *names))


def test_what_is_said_to_be_classes_is(tmp_path: Path) -> None:
    nested = tree(tmp_path / "nested", "a/cats/1", "a/dogs/2", "b/cats/3")
    splits = tree(tmp_path / "splits", "train/1", "val/2")
    tars = tree(tmp_path / "tars", "x/0.tar", "x/1.png")

    assert names_in(nested, nested=True) == ["a/cats/1", "a/dogs/2", "b/cats/3"]
    assert names_in(splits, nested=True) == ["train/1", "val/2"]
    assert names_in(tars, include=("*",)) == ["x/0.tar", "x/1.png"]
    ok("ffrecord-pack", "--nested", nested, tmp_path / "x.ffr")


def test_classes_may_have_a_folder_within(tmp_path: Path) -> None:
    names = ["a/images/1", "b/images/2", "c/.git/x", "c/.cache/x", "c/images/3", "d/4", "d/e/5"]

    found = names_in(tree(tmp_path / "data", *names, "d/f/6"))

    assert found == ["a/images/1", "b/images/2", "c/images/3", "d/4", "d/e/5", "d/f/6"]


def test_links_to_folders_are_none_of_a_class_unless_followed(tmp_path: Path) -> None:
    root = tree(tmp_path / "data", "a/images/1", "b/2")
    (root / "a" / "more").symlink_to(root / "b")

    assert names_in(root) == ["a/images/1", "b/2"]
    with pytest.raises(ValueError, match="a has no files but 2 folders"):
        names_in(root, follow_links=True)


def test_names_of_classes_are_kept_with_each_file(tmp_path: Path) -> None:
    root = tree(tmp_path / "data", "dogs/1", "cats/2", "\u00fc/3")
    pack(open_source(root), tmp_path / "x", part_size_bytes=1)
    pack(open_source(tmp_path / "x"), tmp_path / "y.ffr", compress=True)

    for path in (*sorted((tmp_path / "x").glob("*.ffr")), tmp_path / "y.ffr"):
        metadata = ffrecord.open(path).metadata()
        assert json.loads(metadata["classes"]) == ["cats", "dogs", "\u00fc"]
    assert len(list((tmp_path / "x").glob("*.ffr"))) == 3
    assert open_source(tmp_path / "y.ffr").classes == ("cats", "dogs", "\u00fc")


# Parquet


def test_names_of_labels_of_a_parquet_file_are_kept(tmp_path: Path) -> None:
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "x": {"_type": "Value"}}
    info = json.dumps({"info": {"features": features}})
    table = pa.table({"label": [1, 0], "x": [1, 2]}).replace_schema_metadata({"huggingface": info})
    pq.write_table(table, tmp_path / "a.parquet")

    assert open_source(tmp_path / "a.parquet").classes == ("cat", "dog")
    assert open_source(tmp_path / "a.parquet", SourceOptions(columns=("x",))).classes == ()
    odd = table.replace_schema_metadata({"huggingface": "["})
    pq.write_table(odd, tmp_path / "odd.parquet")
    assert open_source(tmp_path / "odd.parquet").classes == ()


def test_files_with_other_names_of_labels_are_packed_apart(tmp_path: Path) -> None:
    for number, names in enumerate((["cat", "dog"], ["dog", "cat"])):
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        info = {"huggingface": json.dumps({"info": {"features": features}})}
        table = pa.table({"label": [0]}).replace_schema_metadata(info)
        pq.write_table(table, tmp_path / f"{number}.parquet")

    with pytest.raises(ValueError, match=r"1\.parquet has other classes than .*: \(dog, cat\)"):
        list(open_source([str(tmp_path / f"{i}.parquet") for i in range(2)]).samples())


STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.mark.parametrize("kind", ["Image", "Audio", None])
def test_pictures_and_sounds_of_datasets_are_their_bytes_and_paths(
    tmp_path: Path, kind: str | None
) -> None:
    """Other structs of the same fields stay what they are."""
    rows = [{"bytes": b"x", "path": "a"}, None, {"bytes": None, "path": "b"}]
    rows.append({"bytes": b"y", "path": None})
    table = pa.table({"c": pa.array(rows, STRUCT), "n": range(4)})
    features = {"c": {"_type": kind}} if kind else {}
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(told), tmp_path / "a.parquet")

    pack(open_source(tmp_path / "a.parquet"), tmp_path / "x.ffr")

    found = ffrecord.read_table(tmp_path / "x.ffr")
    if kind is None:
        assert found["c"].to_pylist() == rows
        return
    assert found["c"].to_pylist() == [b"x", None, None, b"y"]
    assert found["c.path"].to_pylist() == ["a", None, "b", None]


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "a.parquet")

    with pytest.raises(ValueError, match=r"a\.parquet has several columns called 'a'"):
        open_source(tmp_path / "a.parquet")


def test_all_row_groups_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": list(range(2000))}), tmp_path / "a.parquet", row_group_size=300)

    pack(open_source(tmp_path / "a.parquet"), tmp_path / "x.ffr")

    assert [each["a"] for each in records(tmp_path / "x.ffr")] == list(range(2000))
