"""Goal: tf.data has the batches of a record file as they were announced, and its errors.

Method: TensorFlow's own iterators against the batches that tests/python compares with the order.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
from tutorial import framework

import ffrecord
from ffrecord.tensorflow import Batches
from ranks import run_ranks

tf = framework("tensorflow")
COUNT = 23


@pytest.fixture
def path(tmp_path: Path) -> Path:
    schema = {"label": "i64", "box": "f32[2,2]", "half": "bf16", "flag": "bool", "text": "bytes"}
    with ffrecord.Writer(tmp_path / "data.ffr", schema) as writer:
        for i in range(COUNT):
            box = np.full((2, 2), i, "f4")
            writer.write({"label": i, "box": box, "half": i, "flag": i % 2 == 0, "text": b"text\0"})
    return tmp_path / "data.ffr"


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_tensorflow_has_the_same_batches_in_each_iteration(
    path: Path, drop_remainder: bool
) -> None:
    batches = Batches(path, 6, seed=5, epochs=2, drop_remainder=drop_remainder)
    dataset = batches.to_tf_data()

    assert dataset.cardinality().numpy() == len(batches)
    for _ in range(2):
        for found, expected in zip(dataset, batches, strict=True):
            assert found.keys() == expected.keys()
            for name, tensor in found.items():
                assert dataset.element_spec[name].is_compatible_with(tensor)
                np.testing.assert_array_equal(tensor.numpy(), expected[name])


def read_share(rank: int, world: int, path: str, skip: int, taken: int) -> list[int]:
    batches = Batches(path, 6, seed=5, epochs=2, shard=rank, shards=world, skip=skip)
    taken_batches = batches.to_tf_data().take(taken)
    return [label for batch in taken_batches for label in batch["label"].numpy().tolist()]


def test_ranks_of_their_own_read_each_record_once_an_epoch_and_go_on_as_two_or_three(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "numbers.ffr")
    with ffrecord.Writer(path, {"label": "i64"}) as writer:
        for i in range(24):
            writer.write({"label": i})

    seen = run_ranks(read_share, 2, path, 0, 5)  # To the second epoch.
    as_two = run_ranks(read_share, 2, path, 5, -1)
    as_three = run_ranks(read_share, 3, path, 5, -1)

    for rest in (as_two, as_three):
        assert sorted(itertools.chain(*seen, *rest)) == sorted([*range(24), *range(24)])


def test_keras_trains_on_it(path: Path) -> None:
    dataset = Batches(path, 6).to_tf_data()
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    pairs = dataset.map(lambda b: (tf.reshape(b["box"], (-1, 4)), tf.cast(b["label"], tf.float32)))
    history = model.fit(pairs, epochs=2, verbose=0)

    assert len(history.history["loss"]) == 2


def test_a_damaged_record_is_an_error_and_no_end(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"text\0")] ^= 1
    path.write_bytes(data)

    with pytest.raises(tf.errors.UnknownError, match=r"CorruptionError: .*record 0"):
        list(Batches(path, 6, shuffle=False).to_tf_data())
