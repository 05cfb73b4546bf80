"""Goal: decoded columns are samples and batches like any other, under every engine and policy.

Method: a decoder that reverses bytes, and text, over small files with damaged values in them.
"""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffrecord
from ffrecord.decode import Decoder, Field, Text
from ffrecord.torch import DataLoader, Dataset, Sampler


class Sums(Decoder):
    """The sum of the bytes of each value; a value that begins with 255 is refused."""

    def decode(self, field: Field) -> tuple[Any, dict[int, str]]:
        """See `Decoder`."""
        sums = np.zeros(len(field.starts), np.int64)
        wrong = {}
        for row, (start, size) in enumerate(zip(field.starts, field.sizes, strict=True)):
            if field.status[row] == 0:
                value = field.slab[start : start + size]
                sums[row] = value.sum()
                if size and value[0] == 255:
                    wrong[row] = "it begins with 255"
        return sums, wrong


BAD = 13


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """40 records with three columns; one whose bytes `Sums` refuses."""
    with ffrecord.Writer(
        tmp_path / "a.ffr", {"data": "bytes", "name": "bytes", "label": "i64"}
    ) as writer:
        for i in range(40):
            first = 255 if i == BAD else 0
            name = f"näme {i}".encode()
            writer.write({"data": bytes([first, i, 1]), "name": name, "label": i})
    return tmp_path / "a.ffr"


def test_columns_that_are_named_are_decoded_and_others_stay(path: Path) -> None:
    reader = ffrecord.open(path)

    batch = reader.read([3, 0, 3], decode={"data": Sums(), "name": Text()})

    assert batch["data"].tolist() == [4, 1, 4]
    assert batch["name"] == ["näme 3", "näme 0", "näme 3"]
    assert batch["label"].tolist() == [3, 0, 3]
    assert batch[1] == {"data": 1, "name": "näme 0", "label": 0}
    assert [sample["data"] for sample in batch] == [4, 1, 4]
    assert batch[1:]["data"].tolist() == [1, 4]
    assert batch.only(["data"])[0] == {"data": 4}
    again = pickle.loads(pickle.dumps(copy.copy(batch)))
    assert again["data"].tolist() == [4, 1, 4] and again["name"] == batch["name"]


def test_records_that_are_just_bytes_have_one_decoder(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "t.ffr") as writer:
        for text in ("one", "zwei", "δύο"):
            writer.write(text.encode())
        writer.write(b"\xff\xfe")
    reader = ffrecord.open(tmp_path / "t.ffr")

    batch = reader.read([2, 0], decode=Text())

    assert batch.whole == ["δύο", "one"] and batch[1] == "one" and list(batch) == batch.whole
    with pytest.raises(
        ffrecord.CorruptionError, match=r"record 3 is whole, but not UTF-8: .*byte 0"
    ):
        reader.read([3], decode=Text())
    with pytest.raises(TypeError, match="plain bytes"):
        reader.read([0], decode={"text": Text()})


def test_a_wrong_column_and_a_decoder_without_one_are_refused(path: Path) -> None:
    reader = ffrecord.open(path)
    with pytest.raises(KeyError, match="no column 'picture'"):
        reader.read([0], decode={"picture": Sums()})
    with pytest.raises(TypeError, match="name one"):
        reader.read([0], decode=Sums())


def test_views_decode_as_files_do(path: Path) -> None:
    reader = ffrecord.open(path)
    view = ffrecord.concat([reader.subset(slice(0, 5)), reader.subset(slice(BAD - 1, None))])

    batch = view.read([7, 0, 5, 6], decode={"data": Sums()}, on_corrupt="skip")

    assert batch.indices.tolist() == [7, 0, 5]
    assert batch["data"].tolist() == [BAD + 2, 1, BAD]
    assert "a.ffr: record 13 is whole, but column 'data': it begins" in view.stats()["damaged"][6]


@pytest.mark.parametrize("on_corrupt", ["skip", "replace"])
def test_what_cannot_be_decoded_follows_the_policy(path: Path, on_corrupt: Any) -> None:  # noqa: ANN401
    dataset = Dataset(path, decode={"data": Sums()}, on_corrupt=on_corrupt)

    batch = dataset[[BAD - 1, BAD, BAD + 1]]

    wanted = {"skip": [BAD - 1, BAD + 1], "replace": [BAD - 1, BAD + 1, BAD + 1]}[on_corrupt]
    assert batch.indices.tolist() == wanted
    assert batch["data"].tolist() == [i + 1 for i in wanted]
    assert dataset.stats()["damaged_records"] == 1 and dataset.stats()["decode_s"] > 0
    with pytest.raises(ffrecord.CorruptionError, match="column 'data': it begins with 255"):
        Dataset(path, decode={"data": Sums()})[BAD]


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "mode": "threads"},
                                     {"num_workers": 2, "mode": "workers"}])  # fmt: skip
def test_every_engine_delivers_the_same_tensors(path: Path, options: dict[str, Any]) -> None:
    dataset = Dataset(
        path, decode={"data": Sums(), "name": Text()}, columns=["data", "label"], on_corrupt="skip"
    )
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 8, seed=1), **options)

    batches = list(loader)
    loader.close()

    labels = torch.cat([batch["label"] for batch in batches])
    assert sorted(labels.tolist()) == [i for i in range(40) if i != BAD]
    assert torch.equal(torch.cat([batch["data"] for batch in batches]), labels + 1)
    assert set(batches[0]) == {"data", "label"}
    assert loader.stats()["damaged"] == 1 and loader.stats()["stages"]["decode"] > 0


def test_a_transform_sees_what_was_decoded(path: Path) -> None:
    dataset = Dataset(path, decode={"data": Sums()}, transform=lambda sample: int(sample["data"]))
    assert dataset[[1, 2]] == [2, 3]
    assert dataset[5] == 6


def test_a_subclass_with_process_is_given_bytes_and_no_decoders(path: Path) -> None:
    class Old(Dataset):
        def process(self, indices: Any, data: Any) -> Any:  # noqa: ANN401
            return data

    with pytest.raises(ValueError, match="Old overrides process"):
        Old(path, decode={"data": Sums()})
