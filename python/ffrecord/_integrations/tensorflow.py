"""Record files as a `tf.data.Dataset`. TensorFlow is imported by `to_tf_data` alone.

batches = Batches("train.ffr", 256, seed=1, epochs=10)
model.fit(batches.to_tf_data().map(preprocess))
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ffrecord._order.epoch_order import EpochOrder, check_counts
from ffrecord._read.batch import Batch
from ffrecord._read.locations import Where
from ffrecord._read.reader import open as open_records
from ffrecord._read.records import Records
from ffrecord._tables.schema import Kind, names_of

__all__ = ["Batches", "Spec"]

_RECORD = "record"


class Spec(NamedTuple):
    """The signature of each column in a batch: a type of TensorFlow by name, and a shape.

    The first dimension is None if the last batch may be shorter.
    """

    dtype: str
    shape: tuple[int | None, ...]


class Batches:
    """The batches of some epochs: dicts with an array for each column. Needs no TensorFlow.

    The order is that of `ffrecord.torch.Sampler`: a function of seed, epoch and position, exact,
    and the same whatever number of shards reads it. Numbers are NumPy's arrays of shape
    (n, *shape); bytes and text are arrays of `bytes`, which TensorFlow calls strings. bf16 is
    uint16 with the same bits. Records of plain bytes are the column `record`.

    An iteration starts from the beginning, and several may run beside each other.
    """

    def __init__(
        self,
        where: Where | Records,
        batch_size: int,
        *,
        seed: int = 0,
        epochs: int = 1,
        shuffle: bool = True,
        columns: Sequence[str] | None = None,
        drop_remainder: bool = True,
        shard: int = 0,
        shards: int = 1,
        skip: int = 0,
        **options: Any,  # noqa: ANN401 - those of ffrecord.open
    ) -> None:
        """Open the files, to know their records.

        Args:
            where: as for `ffrecord.open`; or a reader or a view in the format "numpy".
            batch_size: records of one step, over all shards.
            seed: of the order, 0 to 2**64 - 1.
            epochs: how many; each has another order.
            shuffle: False leaves the records in their order.
            columns: those to give out; by default all.
            drop_remainder: leave out what is left of an epoch after its last whole batch. False
                gives it as a shorter batch, to a single shard only.
            shard: which part of each step this process reads, counted from 0.
            shards: how many processes read the steps, each its part.
            skip: steps that were trained on already, over all epochs. They are not read.
            options: of `ffrecord.open`.

        Raises:
            TypeError: a number is not whole.
            ValueError: an argument is out of range; or a column is nullable or nested, of which
                TensorFlow has no plain tensor: its name is in the message.
            KeyError: there is no such column.
            OSError: a file is missing or cannot be read.
        """
        if isinstance(where, Records) and options:
            raise ValueError(f"give {', '.join(options)} where {where!r} was opened")
        if isinstance(where, Records) and where.format != "numpy":
            raise ValueError(f"{where!r} has the format {where.format}; TensorFlow takes numpy")
        self._records = where if isinstance(where, Records) else open_records(where, **options)
        self._columns = names_of(columns)
        self._batch_size, self._epochs, self._skip = batch_size, epochs, skip
        self._seed, self._shuffle, self._is_whole = seed, shuffle, drop_remainder
        self._shard, self._shards = shard, shards
        self._check()
        self.signature: dict[str, Spec] = self._signature()
        """The signature of each batch, by column."""

    def __len__(self) -> int:
        """Batches of one iteration."""
        return max(0, self._epochs * self._steps - self._skip)

    def __iter__(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Read batch by batch.

        Raises:
            CorruptionError, OSError: as `Reader.read`.
        """
        count = len(self._records)
        size = self._batch_size // self._shards
        for step in range(self._skip, self._epochs * self._steps):
            epoch, number = divmod(step, self._steps)
            begin = number * self._batch_size + self._shard * size
            indices = self._order(epoch).range(begin, min(begin + size, count))
            yield self._arrays(self._read(indices))

    def to_tf_data(self, *, prefetch: int = 2) -> Any:  # noqa: ANN401 - tf.data.Dataset
        """Make a tf.data.Dataset of dicts of tensors, by column.

        Args:
            prefetch: batches that TensorFlow reads ahead.

        Raises:
            ImportError: TensorFlow is not installed.
        """
        try:
            import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError as error:
            raise ImportError(
                "ffrecord.tensorflow needs TensorFlow for a tf.data.Dataset: pip install tensorflow"
            ) from error
        signature = {
            name: tf.TensorSpec(spec.shape, tf.dtypes.as_dtype(spec.dtype))
            for name, spec in self.signature.items()
        }
        made = tf.data.Dataset.from_generator(lambda: iter(self), output_signature=signature)
        known = made.apply(tf.data.experimental.assert_cardinality(len(self)))
        return known.prefetch(prefetch)

    def __repr__(self) -> str:
        names = ", ".join(self.signature)
        return f"<ffrecord.tensorflow.Batches: {len(self)} of {self._batch_size} with {names}>"

    @property
    def _steps(self) -> int:
        """The batches of one epoch."""
        whole, rest = divmod(len(self._records), self._batch_size)
        return whole if self._is_whole else whole + (rest > 0)

    def _order(self, epoch: int) -> EpochOrder:
        return EpochOrder.of(self._records, self._seed, epoch, shuffle=self._shuffle)

    def _check(self) -> None:
        check_counts(1, batch_size=self._batch_size, shards=self._shards)
        check_counts(0, epochs=self._epochs, skip=self._skip, shard=self._shard)
        if self._columns == ():
            raise ValueError("columns is empty: name those to give out, or leave it out for all")
        if self._shard >= self._shards:
            raise ValueError(
                f"shard {self._shard} is not below the number of shards {self._shards}"
            )
        if self._batch_size % self._shards:
            raise ValueError(f"batch_size {self._batch_size} does not divide into {self._shards}")
        if not self._is_whole and self._shards > 1:
            raise ValueError(
                "drop_remainder=False leaves some of several shards without a record in the last "
                "step: leave it out"
            )
        if not len(self._records):
            raise ValueError(f"{self._records!r} has no records")
        self._order(0)  # Raises for an invalid seed, or a mixture that is not shuffled.
        if not self._steps:
            raise ValueError(
                f"an epoch would be empty: {len(self._records)} records are fewer than batch_size "
                f"{self._batch_size}; use drop_remainder=False or smaller batches"
            )

    def _read(self, indices: npt.NDArray[np.int64]) -> Batch:
        batch = self._records.read(indices)
        return batch if self._columns is None else batch.only(self._columns)

    def _signature(self) -> dict[str, Spec]:
        batch = self._read(np.empty(0, np.int64))
        is_fixed = self._is_whole or not len(self._records) % self._batch_size
        first = self._batch_size // self._shards if is_fixed else None
        if not batch.columns:
            return {_RECORD: Spec("string", (first,))}
        return {name: _spec(name, batch.kind(name), first) for name in batch.columns}

    def _arrays(self, batch: Batch) -> dict[str, npt.NDArray[Any]]:
        if not batch.columns:
            return {_RECORD: _strings([bytes(one) for one in batch])}
        return {name: _array(batch, name) for name in batch.columns}


def _array(batch: Batch, name: str) -> npt.NDArray[Any]:
    values = batch[name]
    if batch.kind(name).is_text:
        return _strings([_bytes(one) for one in values])
    assert isinstance(values, np.ndarray)
    return values


def _spec(name: str, kind: Kind, first: int | None) -> Spec:
    if not kind.is_plain:
        what = "nullable" if not kind.fields else f"a {kind.type}"
        raise ValueError(
            f"column '{name}' is {what}, of which TensorFlow has no plain tensor: leave it out "
            "with columns=[...]"
        )
    dtype = kind.column(name).dtype
    return Spec("string" if dtype is None else dtype.name, (first, *kind.shape))


def _bytes(value: str | npt.NDArray[np.uint8]) -> bytes:
    return value.encode() if isinstance(value, str) else value.tobytes()


def _strings(values: list[bytes]) -> npt.NDArray[Any]:
    """As TensorFlow takes strings: NumPy's own would lose zeros at the end."""
    made = np.empty(len(values), object)
    made[:] = values
    return made
