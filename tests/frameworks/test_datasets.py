"""Goal: what Hugging Face's datasets holds comes back from a record file as it was.

Method: write datasets of every kind of column, read them back, compare; what has no counterpart is
refused, and leaves no file.
"""

import datetime
import importlib
import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from tutorial import framework

import ffrecord
from ffrecord.torch import DataLoader, Dataset, Sampler
from ranks import run_ranks

datasets = framework("datasets")
from ffrecord.huggingface import (  # noqa: E402
    from_huggingface,
    load_dataset,
    to_huggingface,
)

MAP = pa.map_(pa.string(), pa.int64())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def png(colour: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 3), (colour, 0, 0)).save(file, "png")
    return file.getvalue()


def everything() -> Any:  # noqa: ANN401 - without types
    features = datasets.Features(
        {
            "picture": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "caption": datasets.Value("string"),
            "raw": datasets.Value("binary"),
            "weight": datasets.Value("float32"),
            "flag": datasets.Value("bool"),
            "small": datasets.Value("uint8"),
            "box": datasets.List(datasets.Value("int32"), length=4),
            "grid": datasets.Array2D(shape=(2, 3), dtype="float64"),
        }
    )
    rows = [
        {
            "picture": {"bytes": png(i), "path": None},
            "label": i % 2,
            "caption": f"the {i}th, \u00e4",
            "raw": bytes([0, i, 255]) * i,
            "weight": i / 2,
            "flag": i % 3 == 0,
            "small": 250 + i,
            "box": [i, -i, 2**31 - 1 - i, 0],
            "grid": (np.arange(6).reshape(2, 3) * i).tolist(),
        }
        for i in range(5)
    ]
    return datasets.Dataset.from_list(rows, features=features)


def plain_rows(dataset: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - without types
    return list(dataset.cast_column("picture", datasets.Image(decode=False)))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_dataset_comes_back_as_it_was(tmp_path: Path, streaming: bool) -> None:
    original = everything()

    summary = from_huggingface(original, tmp_path / "a.ffr", compress="zstd")
    again = to_huggingface(tmp_path / "a.ffr", streaming=streaming)

    assert summary.record_count == 5
    assert again.features == original.features
    assert plain_rows(again) == plain_rows(original)
    assert next(iter(again))["picture"].getpixel((0, 0)) == (0, 0, 0)
    assert again.features["label"].int2str(1) == "dog"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_file_without_records_is_a_dataset_without_rows(tmp_path: Path, streaming: bool) -> None:
    original = everything().select([])

    from_huggingface(original, tmp_path / "a.ffr")
    again = to_huggingface(tmp_path / "a.ffr", streaming=streaming)

    assert again.features == original.features
    assert list(again) == []


@pytest.mark.parametrize("streaming", [False, True])
def test_nullable_and_nested_columns_of_a_table_come_whole(tmp_path: Path, streaming: bool) -> None:
    table = pa.table(
        {
            "n": [1, None, 3],
            "tokens": [[1, 2], [], [3]],
            "box": [{"x": 1.5, "of": "cat"}, None, {"x": 2.5, "of": None}],
            "text": ["a", "b", "c"],
        }
    )
    ffrecord.write_table(table, tmp_path / "a.ffr")

    found = to_huggingface(tmp_path / "a.ffr", streaming=streaming)

    assert found.features == datasets.Features.from_arrow_schema(table.schema)
    rows = list(found)
    assert [row["n"] for row in rows] == [1, None, 3]
    assert [row["tokens"] for row in rows] == [[1, 2], [], [3]]
    assert rows[0]["box"] == {"x": 1.5, "of": "cat"}
    assert rows[2]["box"] == {"x": 2.5, "of": None}
    ffrecord.write_table(pa.table({"m": pa.array([[("a", 1)]], MAP)}), tmp_path / "m.ffr")
    with pytest.raises(ValueError, match="datasets has no features for a table with m"):
        to_huggingface(tmp_path / "m.ffr")


def test_a_streamed_dataset_is_written_and_trained_on(tmp_path: Path) -> None:
    from_huggingface(everything().to_iterable_dataset(), tmp_path / "a.ffr")

    dataset = Dataset(tmp_path / "a.ffr", columns=["label", "box"])
    (batch,) = DataLoader(dataset, batch_sampler=Sampler(dataset, 5))

    assert sorted(batch["box"][:, 0].tolist()) == [0, 1, 2, 3, 4]
    assert ffrecord.open(tmp_path / "a.ffr")[3]["picture"].tobytes() == png(3)


def test_an_image_that_is_a_path_is_stored_with_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(png(7))
    dataset = datasets.Dataset.from_dict({"picture": [str(tmp_path / "one.png")]})
    dataset = dataset.cast_column("picture", datasets.Image())

    from_huggingface(dataset, tmp_path / "a.ffr")

    assert ffrecord.open(tmp_path / "a.ffr")[0]["picture"].tobytes() == png(7)


def test_files_that_were_not_made_from_datasets_have_the_features_of_their_schema(
    tmp_path: Path,
) -> None:
    schema = {"a": "i16", "b": "bf16", "c": "f32[2]", "d": "u8[1,2,3]", "e": "bytes", "f": "utf8"}
    one = {"a": -3, "b": 1.0, "c": [1, 2], "d": np.ones((1, 2, 3), "u1"), "e": b"x", "f": "y"}
    for name in ("1.ffr", "2.ffr"):
        with ffrecord.Writer(tmp_path / name, schema) as writer:
            writer.write(one)

    found = to_huggingface([tmp_path / "1.ffr", tmp_path / "2.ffr"])

    expected = {"a": -3, "b": 1.0, "c": [1, 2], "d": [[[1] * 3] * 2], "e": b"x", "f": "y"}
    assert list(found) == [expected, expected]
    assert to_huggingface(tmp_path / "*.ffr", streaming=True).num_shards == 2


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"[1]",
        b'{"a": 3}',
        b'{"a": {"_type": "Nothing"}}',
        b'{"a": {"dtype": "string", "_type": "Value"}}',
        b'{"b": {"dtype": "int64", "_type": "Value"}}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_features_in_a_file_that_do_not_fit_its_records_are_not_used(
    stored: bytes, tmp_path: Path
) -> None:
    metadata = {"huggingface.features": stored}
    with ffrecord.Writer(tmp_path / "a.ffr", {"a": "i64"}, metadata=metadata) as writer:
        writer.write({"a": 5})

    assert list(to_huggingface(tmp_path / "a.ffr")) == [{"a": 5}]


def test_an_image_with_neither_bytes_nor_a_path_is_refused(tmp_path: Path) -> None:
    features = datasets.Features({"a": datasets.Image()})
    table = pa.table([[{"bytes": None, "path": None}]], schema=features.arrow_schema)
    dataset = datasets.Dataset(table, datasets.DatasetInfo(features=features))

    with pytest.raises(ValueError, match="column 'a' is null in row 0"):
        from_huggingface(dataset, tmp_path / "a.ffr")


def test_what_is_refused_is_kept_as_the_message_says(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "picture": datasets.Image(),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "tokens": datasets.List(datasets.Value("int32")),
            "when": datasets.Value("timestamp[us, tz=UTC]"),
            "turns": datasets.List({"role": datasets.Value("string")}),
        }
    )
    rows = [
        {
            "picture": {"bytes": png(i), "path": None},
            "label": i % 2,
            "tokens": None if i == 2 else list(range(i)),
            "when": None if i == 1 else 1_000_000 * i,
            "turns": [{"role": None if i == 3 else "user"}] * i,
        }
        for i in range(5)
    ]
    dataset = datasets.Dataset.from_list(rows, features=features).select([3, 1, 4, 0, 2])
    with pytest.raises(ValueError, match="write_table") as raised:
        from_huggingface(dataset, tmp_path / "a.ffr")

    call = str(raised.value).partition("write all columns with ")[2].partition(". Or")[0]
    eval(call, {"ffrecord": ffrecord, "dataset": dataset, "path": tmp_path / "a.ffr"})

    for again in (
        to_huggingface(tmp_path / "a.ffr"),
        to_huggingface(tmp_path / "a.ffr", streaming=True),
    ):
        assert again.features == dataset.features
        undecoded = again.cast_column("picture", datasets.Image(decode=False))
        expected = dataset.cast_column("picture", datasets.Image(decode=False))
        assert list(undecoded) == list(expected)


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    dataset = datasets.Dataset.from_dict({"a": [1]})
    from_huggingface(dataset, tmp_path / "a.ffr")

    with pytest.raises(ffrecord.ConflictError):
        from_huggingface(dataset, tmp_path / "a.ffr")
    from_huggingface(dataset, tmp_path / "a.ffr", replace=True)


def test_a_file_that_was_written_anew_is_not_taken_from_the_cache(tmp_path: Path) -> None:
    for text in (b"old", b"new"):
        with ffrecord.Writer(tmp_path / "a.ffr", replace=True) as writer:
            writer.write(text)
        assert list(to_huggingface(tmp_path / "a.ffr")) == [{"record": text}]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([[1], [1, 2]], r"column 'a': records have no plain type for List.*remove_columns\('a'\)"),
        ([{"b": 1}, {"b": 2}], "column 'a': .* no plain type for .*write_table"),
        ([1, None], r"column 'a' is null in row 1.*write_table\("),
    ],
)
def test_what_records_cannot_hold_is_refused_and_leaves_no_file(
    values: list[Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=complaint):
        from_huggingface(datasets.Dataset.from_dict({"a": values}), tmp_path / "a.ffr")

    assert not list(tmp_path.glob("*.ffr*"))


def test_several_splits_are_not_mixed(tmp_path: Path) -> None:
    splits = datasets.DatasetDict({"train": everything(), "test": everything()})

    with pytest.raises(TypeError, match=r"2 splits: pass one, such as dataset\['train'\]"):
        from_huggingface(splits, tmp_path / "a.ffr")


@pytest.mark.parametrize("streaming", [False, True])
def test_splits_are_loaded_by_name(tmp_path: Path, streaming: bool) -> None:
    for name, texts in {"a": "pq", "b": "r", "c": "st"}.items():
        rows = datasets.Dataset.from_dict({"text": list(texts)})
        from_huggingface(rows, tmp_path / f"{name}.ffr")
    files = {"train": [tmp_path / "a.ffr", tmp_path / "b.ffr"], "test": tmp_path / "c.ffr"}

    splits = load_dataset(files, streaming=streaming)
    one = load_dataset(files, split="test", streaming=streaming)
    alone = load_dataset(tmp_path / "[ab].ffr", streaming=streaming)

    kind = datasets.IterableDatasetDict if streaming else datasets.DatasetDict
    assert isinstance(splits, kind) and isinstance(alone, kind)
    assert {name: [row["text"] for row in split] for name, split in splits.items()} == {
        "train": ["p", "q", "r"],
        "test": ["s", "t"],
    }
    assert [row["text"] for row in one] == ["s", "t"]
    assert [row["text"] for row in alone["train"]] == ["p", "q", "r"]
    assert str(splits["test"].split) == "test"


def numbers_in(folder: Path, files: int) -> list[Path]:
    paths = [folder / f"{number}.ffr" for number in range(files)]
    for first, path in enumerate(paths):
        with ffrecord.Writer(path, {"label": "i64"}) as writer:
            for i in range(25):
                writer.write({"label": 25 * first + i})
    return paths


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("files", "world"), [(1, 2), (4, 2), (4, 3)])
def test_ranks_share_the_records(tmp_path: Path, files: int, world: int, streaming: bool) -> None:
    dataset = to_huggingface(numbers_in(tmp_path, files), streaming=streaming)
    share = importlib.import_module("datasets.distributed").split_dataset_by_node

    seen = [row["label"] for rank in range(world) for row in share(dataset, rank, world)]

    assert sorted(seen) == list(range(25 * files))


@pytest.mark.parametrize("taken", [0, 10, 25, 60])
def test_a_streamed_dataset_goes_on_at_the_next_record(tmp_path: Path, taken: int) -> None:
    paths = numbers_in(tmp_path, 4)
    first = to_huggingface(paths, streaming=True)
    rows = iter(first)
    seen = [next(rows)["label"] for _ in range(taken)]

    resumed = to_huggingface(paths, streaming=True)
    resumed.load_state_dict(first.state_dict())

    assert seen + [row["label"] for row in resumed] == list(range(100))


def read_share(
    rank: int, world: int, paths: list[str], place: str, begin: int, taken: int | None
) -> list[list[int]]:
    """One rank's labels of the epochs from `begin`: from its place on, and of the last some."""
    datasets.config.HF_DATASETS_CACHE = f"{place}-cache{rank}"
    split = importlib.import_module("datasets.distributed").split_dataset_by_node
    own = split(to_huggingface(paths, streaming=True).shuffle(seed=3, buffer_size=1), rank, world)
    noted = Path(f"{place}{rank}")
    if noted.exists():
        own.load_state_dict(json.loads(noted.read_text()))
    seen = []
    for epoch in range(begin, 2):
        own.set_epoch(epoch)
        rows = itertools.islice(own, taken if epoch == 1 else None)
        seen.append([row["label"] for row in rows])
    noted.write_text(json.dumps(own.state_dict()))
    return seen


def test_ranks_of_their_own_stream_each_record_once_an_epoch_and_go_on(tmp_path: Path) -> None:
    paths = [str(path) for path in numbers_in(tmp_path, 4)]

    seen = run_ranks(read_share, 2, paths, str(tmp_path / "place"), 0, 17)
    rest = run_ranks(read_share, 2, paths, str(tmp_path / "place"), 1, None)

    first = [label for own in seen for label in own[0]]
    second = [label for own in [*seen, *rest] for label in own[-1]]
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second


def test_a_split_that_is_not_there_is_refused(tmp_path: Path) -> None:
    from_huggingface(datasets.Dataset.from_dict({"text": ["p"]}), tmp_path / "a.ffr")

    with pytest.raises(ValueError, match=r"split is 'train\[:10\]'; there are train.*select"):
        load_dataset(tmp_path / "a.ffr", split="train[:10]")
    with pytest.raises(ValueError, match="has no splits"):
        load_dataset({})
    with pytest.raises(FileNotFoundError, match=r"none\.ffr"):
        load_dataset({"train": tmp_path / "none.ffr"})


@pytest.mark.parametrize("way", ["plain", "table"])
def test_files_whose_labels_have_other_names_are_not_one_dataset(way: str, tmp_path: Path) -> None:
    """Number 0 would be a cat in all of them."""

    def written(name: str, labels: list[str], as_table: bool) -> None:
        features = datasets.Features({"kind": datasets.ClassLabel(names=labels)})
        one = datasets.Dataset.from_dict({"kind": ["cat", "dog"]}, features)
        if as_table:
            ffrecord.write_table(one.with_format("arrow")[:], tmp_path / name)
        else:
            from_huggingface(one, tmp_path / name)

    written("a.ffr", ["cat", "dog"], way == "table")
    written("b.ffr", ["cat", "dog"], way == "table")
    written("c.ffr", ["dog", "cat"], way == "table")
    same = to_huggingface([tmp_path / "a.ffr", tmp_path / "b.ffr"])
    assert [same.features["kind"].int2str(row["kind"]) for row in same] == ["cat", "dog"] * 2

    for streaming in (False, True):
        with pytest.raises(ValueError, match=r"labels of column 'kind' .*c\.ffr: load"):
            load_dataset({"train": str(tmp_path / "*.ffr")}, streaming=streaming)


@pytest.mark.parametrize("way", ["plain", "table"])
@pytest.mark.parametrize("first", ["named", "bare"])
def test_labels_without_names_are_not_one_dataset_with_those_that_have_some(
    way: str, first: str, tmp_path: Path
) -> None:
    """The names would be lost, or those of numbers that may mean something else."""
    features = datasets.Features({"kind": datasets.ClassLabel(names=["cat", "dog"])})
    named = datasets.Dataset.from_dict({"kind": ["cat", "dog"]}, features)
    if way == "table":
        ffrecord.write_table(named.with_format("arrow")[:], tmp_path / "named.ffr")
        ffrecord.write_table(pa.table({"kind": pa.array([1, 0])}), tmp_path / "bare.ffr")
    else:
        from_huggingface(named, tmp_path / "named.ffr")
        with ffrecord.Writer(tmp_path / "bare.ffr", {"kind": "i64"}) as writer:
            writer.write({"kind": 1})
            writer.write({"kind": 0})
    paths = [tmp_path / "named.ffr", tmp_path / "bare.ffr"]
    paths = paths if first == "named" else paths[::-1]

    for streaming in (False, True):
        with pytest.raises(ValueError, match=r"labels of column 'kind' .*bare\.ffr.*cast_column"):
            to_huggingface(paths, streaming=streaming)
    # As the error says.
    bare = to_huggingface(tmp_path / "bare.ffr").cast_column("kind", features["kind"])
    whole = datasets.concatenate_datasets([to_huggingface(tmp_path / "named.ffr"), bare])
    assert whole.features == features
    assert whole["kind"][:] == [0, 1, 1, 0]


def test_labels_of_columns_whose_names_look_like_places_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    labels = [datasets.ClassLabel(names=names) for names in (["a", "b"], ["c", "d"])]
    features = datasets.Features({"s": {"k": labels[0]}, "s.k": labels[1]})
    one = datasets.Dataset.from_list([{"s": {"k": 0}, "s.k": 1}], features=features)
    ffrecord.write_table(one.with_format("arrow")[:], path)

    assert to_huggingface(path).features == features


@pytest.mark.parametrize("lacks", [False, True])
def test_features_come_back_from_tables_with_nulls_and_without(lacks: bool, tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "seen": datasets.Value("timestamp[ms]"),
            "words": datasets.List(datasets.Value("string")),
            "box": {"x": datasets.Value("int32")},
        }
    )
    seen = datetime.datetime(2026, 1, 1)
    rows = {
        "label": [0, None if lacks else 1],
        "seen": [seen, None if lacks else seen],
        "words": [["a"], None if lacks else ["b", "c"]],
        "box": [{"x": 1}, {"x": None if lacks else 2}],
    }
    one = datasets.Dataset.from_dict(rows, features)
    ffrecord.write_table(one.with_format("arrow")[:], tmp_path / "t.ffr")

    for streaming in (False, True):
        again = to_huggingface(tmp_path / "t.ffr", streaming=streaming)
        assert again.features == one.features
        assert list(again) == list(one)
