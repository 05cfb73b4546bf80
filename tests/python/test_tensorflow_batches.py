"""Goal: the batches for TensorFlow are each record once, in the sampler's order, as announced.

Method: without TensorFlow. The batches are compared with torch's reader of the same order, cut at
each step, and shared among shards; what is announced of them is compared with what comes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from ffrecord.tensorflow import Batches, Spec
from ffrecord.torch import Dataset, Sampler

pytestmark = pytest.mark.wrong_data

COUNT = 23


@pytest.fixture
def path(tmp_path: Path) -> Path:
    schema = {"label": "i64", "box": "f32[2,2]", "half": "bf16", "image": "bytes", "name": "utf8"}
    with ffrecord.Writer(tmp_path / "data.ffr", schema) as writer:
        for i in range(COUNT):
            box, image = np.full((2, 2), i, "f4"), bytes([i, 0])
            writer.write({"label": i, "box": box, "half": i, "image": image, "name": f"ü{i}"})
    return tmp_path / "data.ffr"


def labels(batches: Batches) -> list[list[int]]:
    return [batch["label"].tolist() for batch in batches]


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_order_is_the_samplers_at_any_number_of_shards(path: Path, shuffle: bool) -> None:
    sampler = Sampler(COUNT, 6, 5, shuffle=shuffle)
    expected = [list(batch) for _ in range(3) for batch in sampler]

    whole = Batches(path, 6, seed=5, epochs=3, shuffle=shuffle)
    assert labels(whole) == expected == labels(whole)
    assert len(whole) == 9
    shards = [
        labels(Batches(path, 6, seed=5, epochs=3, shuffle=shuffle, shard=i, shards=3))
        for i in range(3)
    ]
    assert [a + b + c for a, b, c in zip(*shards, strict=True)] == expected


def test_a_run_goes_on_after_any_step(path: Path) -> None:
    expected = labels(Batches(path, 6, seed=5, epochs=2))
    for skip in range(8):
        rest = Batches(path, 6, seed=5, epochs=2, skip=skip)
        assert labels(rest) == expected[skip:]
        assert len(rest) == max(0, 6 - skip)


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_batches_are_as_announced(path: Path, drop_remainder: bool) -> None:
    batches = Batches(path, 6, drop_remainder=drop_remainder)
    first = 6 if drop_remainder else None

    assert batches.signature == {
        "label": Spec("int64", (first,)),
        "box": Spec("float32", (first, 2, 2)),
        "half": Spec("uint16", (first,)),
        "image": Spec("string", (first,)),
        "name": Spec("string", (first,)),
    }
    sizes = []
    for batch in batches:
        sizes.append(len(batch["label"]))
        for name, (dtype, shape) in batches.signature.items():
            assert batch[name].dtype == (np.dtype(object) if dtype == "string" else dtype)
            assert batch[name].shape == (sizes[-1], *shape[1:])
        for row, label in enumerate(batch["label"].tolist()):
            assert batch["image"][row] == bytes([label, 0])  # Also a zero at the end.
            assert batch["name"][row] == f"ü{label}".encode()
    assert sizes == [6, 6, 6] + ([] if drop_remainder else [5])


def test_plain_records_views_and_some_columns_are_read(path: Path, tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "plain.ffr") as writer:
        for i in range(4):
            writer.write(bytes([i, 0]))
    (batch,) = Batches(tmp_path / "plain.ffr", 4, shuffle=False)
    assert batch["record"].tolist() == [bytes([i, 0]) for i in range(4)]

    reader = ffrecord.open(path)
    mixed = ffrecord.mix([reader.subset(slice(0, 4)), reader.subset(slice(4, 23))], weights=[1, 2])
    sampler = Sampler(Dataset(mixed, columns=["label"]), 6, 5)
    expected = [Dataset(mixed)[list(batch)] for _ in range(2) for batch in sampler]
    found = labels(Batches(mixed, 6, seed=5, epochs=2, columns=["label"]))
    assert found == [[sample["label"] for sample in batch] for batch in expected]

    chosen = reader.subset([3, 5])
    (batch,) = Batches(chosen, 2, shuffle=False, columns=["label"])
    assert {name: values.tolist() for name, values in batch.items()} == {"label": [3, 5]}


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"batch_size": 0}, ValueError, "batch_size is 0"),
        ({"batch_size": 24}, ValueError, "an epoch would be empty: 23 records"),
        ({"seed": -1}, ValueError, "seed"),
        ({"epochs": -1}, ValueError, "epochs is -1"),
        ({"skip": -1}, ValueError, "skip is -1"),
        ({"shard": 2, "shards": 2}, ValueError, "shard 2 is not below"),
        ({"shard": -1}, ValueError, "shard is -1"),
        ({"shards": 6 / 2}, TypeError, "shards is 3.0; it must be a whole number"),
        ({"skip": 0.5}, TypeError, "skip is 0.5"),
        ({"columns": []}, ValueError, "columns is empty"),
        ({"shards": 4}, ValueError, "does not divide into 4"),
        ({"shards": 2, "drop_remainder": False}, ValueError, "several shards"),
        ({"columns": ["nope"]}, KeyError, "no column 'nope'"),
        ({"columns": "label"}, TypeError, r"columns=\['label'\]"),
    ],
)
def test_what_makes_no_batches_is_refused(
    path: Path, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        Batches(path, **{"batch_size": 6, **arguments})


def test_nullable_and_nested_columns_are_refused_by_name(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    ffrecord.write_table(
        pa.table({"n": [1, None], "l": [[1], []], "i": [1, 2]}), tmp_path / "t.ffr"
    )

    for name, said in (("n", "'n' is nullable"), ("l", "'l' is a list")):
        with pytest.raises(ValueError, match=said):
            Batches(tmp_path / "t.ffr", 1, columns=[name, "i"])
    assert len(Batches(tmp_path / "t.ffr", 1, columns=["i"])) == 2


def test_without_tensorflow_the_error_says_what_to_install(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorflow", None)

    with pytest.raises(ImportError, match="pip install tensorflow"):
        Batches(path, 6).to_tf_data()
