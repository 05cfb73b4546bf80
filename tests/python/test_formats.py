"""Goal: values come as their user's code wants them, whatever reads them, and are the same values.

Method: one file of every kind of column, read by readers, views, datasets and loaders in each
format, and compared with what was written; json, Pillow-like code and pyarrow take what they get.
"""

import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffrecord
from ffrecord import Batch
from ffrecord.decode import Decoder, Field, Image, Text
from ffrecord.torch import DataLoader, Dataset, Sampler

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")

COUNT = 24
SCHEMA = {
    "label": "i64",
    "box": "f32[2,2]",
    "flags": "bool[2]",
    "weight": "bf16",
    "picture": "bytes",
    "caption": "utf8",
}


def sample(i: int) -> dict[str, Any]:
    return {
        "label": i,
        "box": np.full((2, 2), i, "f4"),
        "flags": np.array([i % 2, 1], bool),
        "weight": float(i),
        "picture": json.dumps({"number": i, "pad": "x" * (i % 5)}).encode(),
        "caption": f"caption {i} ü",
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("formats") / "data.ffr"
    with ffrecord.Writer(path, SCHEMA) as writer:
        for i in range(COUNT):
            writer.write(sample(i))
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("formats") / "plain.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(COUNT):
            writer.write(json.dumps({"number": i}).encode())
    return path


def numbers(samples: Any) -> Iterator[int]:  # noqa: ANN401 - of any reader
    return (json.loads(one["picture"])["number"] for one in samples)


def test_bytes_are_bytes_for_code_that_takes_no_arrays(path: Path) -> None:
    reader = ffrecord.open(path).with_format("bytes")

    assert type(reader[3]["picture"]) is bytes
    assert list(numbers(reader)) == list(range(COUNT))
    batch = reader.read([5, -1])
    assert [json.loads(each)["number"] for each in batch["picture"]] == [5, COUNT - 1]
    assert pa.array(batch["picture"], pa.binary()).to_pylist()[0] == sample(5)["picture"]
    assert batch["caption"] == ["caption 5 ü", f"caption {COUNT - 1} ü"]
    np.testing.assert_array_equal(batch["label"], [5, COUNT - 1])
    assert list(numbers(batch[1:])) == [COUNT - 1]
    assert batch.data.dtype == np.uint8  # All else is as it was.


def test_plain_records_are_bytes_too(plain: Path) -> None:
    reader = ffrecord.open(plain).with_format("bytes")

    assert json.loads(reader[7])["number"] == 7
    assert [json.loads(each)["number"] for each in reader.read([2, 0])] == [2, 0]
    assert json.loads(reader.read([4])[0])["number"] == 4


def test_tensors_share_the_memory_of_the_batch(path: Path) -> None:
    batch = ffrecord.open(path).with_format("torch").read([1, 2])

    assert batch["weight"].dtype == torch.bfloat16
    assert batch["weight"].tolist() == [1, 2]
    assert batch[1]["box"].tolist() == [[2, 2], [2, 2]]
    picture = batch[0]["picture"]
    assert bytes(picture.numpy()) == sample(1)["picture"]
    first, last = batch.slab.ctypes.data, batch.slab.ctypes.data + batch.slab.nbytes
    assert first <= picture.data_ptr() < last


def test_a_table_of_arrow_has_every_column_with_its_type(path: Path) -> None:
    reader = ffrecord.open(path)
    table = reader.read([3, 1]).to_arrow()

    assert table.column_names == list(SCHEMA)
    assert table["label"].to_pylist() == [3, 1]
    assert table["picture"].to_pylist() == [sample(3)["picture"], sample(1)["picture"]]
    assert table["caption"].to_pylist() == ["caption 3 ü", "caption 1 ü"]
    assert table["flags"].to_pylist() == [[True, True], [True, True]]
    assert table.schema.field("box").type == pa.fixed_shape_tensor(pa.float32(), (2, 2))
    box = table["box"].combine_chunks().to_numpy_ndarray()
    np.testing.assert_array_equal(box, [np.full((2, 2), 3), np.full((2, 2), 1)])
    assert table.schema.field("weight").type == pa.float32()
    assert table["weight"].to_pylist() == [3, 1]
    kinds = {f.name: f.metadata[b"ffrecord.type"].decode() for f in table.schema}
    assert kinds == SCHEMA


def test_numbers_reach_arrow_without_a_copy(path: Path) -> None:
    batch = ffrecord.open(path).read(np.arange(COUNT))
    for name in ("label", "box"):
        values = batch[name]
        array = batch.to_arrow()[name].chunk(0)
        block = array.buffers()[-1]
        assert block.address == values.ctypes.data


def test_samples_and_columns_in_arrows_format(path: Path, plain: Path) -> None:
    reader = ffrecord.open(path).with_format("arrow")

    assert reader[4].to_pylist()[0]["label"] == 4
    assert reader[-1]["label"].to_pylist() == [COUNT - 1]
    assert isinstance(reader.read([1])["label"], pa.Array)
    rows = list(reader)
    assert pa.concat_tables(rows)["label"].to_pylist() == list(range(COUNT))
    records = ffrecord.open(plain).with_format("arrow").read([1, 0]).to_arrow()
    assert [json.loads(each)["number"] for each in records["record"].to_pylist()] == [1, 0]
    assert len(ffrecord.open(plain).read([]).to_arrow()) == 0
    assert len(ffrecord.open(path).read([]).to_arrow()) == 0


def test_views_keep_the_format_and_their_order(path: Path) -> None:
    reader = ffrecord.open(path).with_format("bytes")

    assert list(numbers(reader.subset([5, 2]))) == [5, 2]
    assert list(numbers(ffrecord.concat([reader, reader])))[COUNT - 1 : COUNT + 1] == [23, 0]
    assert reader.fingerprint == ffrecord.open(path).fingerprint
    assert type(reader.subset([1]).with_format("numpy")[0]["picture"]) is np.ndarray
    assert reader.with_format("numpy").format == "numpy"
    with pytest.raises(ValueError, match="have the formats bytes, numpy"):
        ffrecord.concat([reader, ffrecord.open(path)])
    with pytest.raises(ValueError, match="format is 'pandas'; it can be numpy, bytes"):
        reader.with_format("pandas")


@pytest.mark.parametrize("format", ["numpy", "bytes", "torch", "arrow"])
def test_a_batch_keeps_its_format_through_a_pickle(path: Path, format: str) -> None:
    batch = ffrecord.open(path).with_format(format).read([1, 2])
    again: Batch = pickle.loads(pickle.dumps(batch))

    assert again.format == batch.format == format
    assert type(again["picture"]) is type(batch["picture"])
    assert list(again["label"]) == list(batch["label"])


# --- Datasets and loaders ---


class Decoded(Decoder):
    """Makes arrays of uint8, as a decoder of pictures does."""

    def decode(self, field: Field) -> tuple[list[Any], dict[int, str]]:
        """See `Decoder`."""
        return [np.array([size], np.uint8) for size in field.sizes.tolist()], {}


ENGINES: list[dict[str, Any]] = [
    {},
    {"mode": "workers", "num_workers": 2},
    {"mode": "threads", "num_workers": 2},
    {"num_workers": 2},
]


def parsed(one: dict[str, Any]) -> dict[str, Any]:
    return {"number": json.loads(one["picture"])["number"], "label": one["label"]}


@pytest.mark.parametrize("engine", ENGINES)
def test_loaders_hand_out_bytes_and_transforms_get_them(path: Path, engine: dict[str, Any]) -> None:
    dataset = Dataset(path).with_format("bytes")
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 8, shuffle=False), **engine)
    changed = Dataset(path, transform=parsed).with_format("bytes")
    made = DataLoader(changed, batch_sampler=Sampler(changed, 8, shuffle=False), **engine)

    for at, batch in enumerate(loader):
        assert [json.loads(each)["number"] for each in batch["picture"]] == list(
            range(8 * at, 8 * at + 8)
        )
        assert batch["label"].tolist() == list(range(8 * at, 8 * at + 8))
    seen = [i for batch in made for i in batch["number"].tolist()]
    assert seen == list(range(COUNT))
    loader.close()
    made.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_loaders_hand_out_tables(path: Path, engine: dict[str, Any]) -> None:
    dataset = Dataset(path).with_format("arrow")
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 8, shuffle=False), **engine)

    tables = list(loader)

    assert pa.concat_tables(tables)["label"].to_pylist() == list(range(COUNT))
    loader.close()


def test_batches_of_tensors_are_the_same_in_both_formats(path: Path, plain: Path) -> None:
    for where in (path, plain):
        one, other = Dataset(where), Dataset(where).with_format("torch")
        for a, b in zip(
            DataLoader(one, batch_size=6), DataLoader(other, batch_size=6), strict=True
        ):
            assert repr(a) == repr(b)


def test_torchs_own_loader_takes_samples_of_bytes(plain: Path) -> None:
    dataset = Dataset(plain).with_format("bytes")
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, collate_fn=list)

    assert [json.loads(each)["number"] for batch in loader for each in batch] == list(range(COUNT))


def test_decoded_columns_in_arrow_lack_what_is_missing(tmp_path: Path) -> None:
    """Pictures of one size are tensors of Arrow's; a batch may have none of them, or no text."""
    made = io.BytesIO()
    pytest.importorskip("PIL.Image").new("RGB", (3, 2), (9, 8, 7)).save(made, "PNG")
    pictures = [made.getvalue(), None, made.getvalue(), None]
    columns = {"p": pa.array(pictures, pa.binary()), "t": pa.array([None, "b", None, None])}
    ffrecord.write_table(pa.table(columns), tmp_path / "some.ffr")
    reader = ffrecord.open(tmp_path / "some.ffr").with_format("arrow")
    pixels = [9, 8, 7] * 4

    for indices in ([0, 1, 2, 3], [0], [1], [2, 0], [3, 1], []):
        batch = reader.read(indices, decode={"p": Image(2), "t": Text()})
        table = batch.to_arrow()
        assert all(field.nullable for field in table.schema)
        seen = [
            None if each is None else np.ravel(each).tolist()
            for each in table["p"].combine_chunks().to_pylist()
        ]
        assert seen == [pixels if pictures[i] else None for i in indices]
        assert table["t"].to_pylist() == ["b" if i == 1 else None for i in indices]
        if any(pictures[i] for i in indices):
            assert table.schema.field("p").type == pa.fixed_shape_tensor(pa.uint8(), [2, 2, 3])


@pytest.mark.parametrize("missing", [False, True])
def test_large_numbers_that_a_transform_makes_are_collated(tmp_path: Path, missing: bool) -> None:
    most = 2**64 - 1
    numbers = pa.array([most, None if missing else 2, 3], pa.uint64())
    ffrecord.write_table(pa.table({"n": numbers}), tmp_path / "u64.ffr")

    def made_anew(one: dict[str, Any]) -> dict[str, Any]:
        return {"n": None if one["n"] is None else np.uint64(one["n"])}

    batch = next(iter(DataLoader(Dataset(tmp_path / "u64.ffr", transform=made_anew), 3)))["n"]
    values = batch["values"] if missing else batch
    assert values.dtype == torch.uint64
    assert values.tolist() == [most, 0 if missing else 2, 3]


def test_decoded_columns_keep_what_their_decoder_made(path: Path) -> None:
    dataset = Dataset(path, decode={"picture": Text()}).with_format("bytes")

    assert json.loads(dataset[2]["picture"])["number"] == 2
    assert type(dataset[2]["picture"]) is str
    lengths = Decoded()
    decoded = Dataset(path, decode={"picture": lengths}).with_format("bytes")
    assert decoded[2]["picture"].tolist() == [len(sample(2)["picture"])]
    table = Dataset(path, decode={"picture": Text()}).with_format("arrow")[[2, 1]].to_arrow()
    assert json.loads(table["picture"].to_pylist()[1])["number"] == 1


def test_subsets_and_concatenations_of_datasets_have_formats_too(path: Path) -> None:
    dataset = Dataset(path)
    subset = torch.utils.data.Subset(dataset.with_format("bytes"), [3, 1])
    ours = ffrecord.torch.Subset(dataset, [3, 1]).with_format("bytes")
    both = (dataset + dataset).with_format("bytes")

    assert list(numbers(subset)) == list(numbers(ours)) == [3, 1]
    assert list(numbers([both[COUNT + 2]])) == [2]
    assert type(dataset[0]["picture"]) is np.ndarray  # It is as it was.


def test_a_subclass_that_makes_samples_itself_is_told(path: Path) -> None:
    class Own(Dataset):
        def process(self, indices: Any, data: Any) -> Any:  # noqa: ANN401
            return data

    with pytest.raises(ValueError, match="Own overrides process"):
        Own(path).with_format("bytes")


def test_damage_in_a_formatted_view_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "data.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(20):
            writer.write(bytes([i]) * 100)
    contents = bytearray(path.read_bytes())
    contents[contents.index(bytes([4]) * 100) + 50] ^= 1
    path.write_bytes(contents)
    reader = ffrecord.open(path, max_corrupt=0.5).with_format("bytes")

    assert reader.read([3, 4], on_corrupt="skip")[0] == bytes([3]) * 100
    assert list(reader.stats()["damaged"]) == [4]
    with pytest.raises(ffrecord.CorruptionError, match="record 4"):
        reader.read([4])


@pytest.mark.parametrize(
    "spelling", ["utf8", "bytes", "i64", "bf16", "bool[2]", "i64[2]", "f32[2,3]"]
)
def test_a_column_of_no_records_has_the_type_that_it_has_with_some(
    spelling: str, tmp_path: Path
) -> None:
    value = {"utf8": "x", "bytes": b"x"}.get(spelling, 1)
    if "[" in spelling:
        shape = [int(size) for size in spelling.partition("[")[2][:-1].split(",")]
        value = np.ones(shape, np.bool_ if spelling[0] == "b" else np.int64)
    tables = []
    for count in (0, 1):
        with ffrecord.Writer(tmp_path / f"{count}.ffr", {"x": spelling}) as writer:
            for _ in range(count):
                writer.write({"x": value})
        tables.append(ffrecord.read_table(tmp_path / f"{count}.ffr"))

    assert tables[0].schema.field("x").type == tables[1].schema.field("x").type
    assert len(pytest.importorskip("pyarrow").concat_tables(tables)) == 1


def test_an_empty_list_of_numbers_that_may_be_missing_is_an_empty_tensor(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    rows = pa.table({"x": pa.array([[], [None, 1], []], pa.list_(pa.int64()))})
    ffrecord.write_table(rows, tmp_path / "x.ffr")

    seen = ffrecord.open(tmp_path / "x.ffr").with_format("torch").read([0, 1, 2])["x"]

    assert [one["values"].tolist() for one in seen] == [[], [0, 1], []]
    assert [one["valid"].tolist() for one in seen] == [[], [False, True], []]
