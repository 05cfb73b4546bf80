"""Goal: tf.data has the batches of a record file as they were announced, and its errors.

Method: TensorFlow's own iterators against the batches that tests/python compares with the order.
"""

from pathlib import Path

import numpy as np
import pytest
from tutorial import framework

import ffrecord
from ffrecord.tensorflow import Batches

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
