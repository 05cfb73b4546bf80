"""Record files as a data source of Grain, the loader of JAX. Neither Grain nor JAX is imported.

batches = BatchSource("train.ffr", 256, seed=1, epochs=2)
pipeline = grain.MapDataset.source(batches)[rank::world_size].to_iter_dataset()
"""

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy.typing as npt

from ffrecord._order.epoch_order import EpochOrder, IndexBatch, check_counts
from ffrecord._read.batch import Batch
from ffrecord._read.locations import Where
from ffrecord._read.reader import Reader
from ffrecord._read.reader import open as open_records
from ffrecord._read.records import Records
from ffrecord._tables.schema import names_of
from ffrecord.decode._decoder import Decode

__all__ = ["BatchSource", "DataSource"]


class DataSource:
    """Random access for `grain.MapDataset.source` and `grain.DataLoader`, and reads of a batch.

    Element i is a dict with a value for each column: numbers as NumPy's, bytes as `bytes`, text as
    `str`. Records of plain bytes are `bytes`, as those of ArrayRecord. bf16 is uint16 with the same
    bits. Threads may share a source; a pickle holds its arguments only, so processes open the files
    themselves. Its `repr` names the data, so `grain.DataLoader` refuses a checkpoint of other data;
    the state of a `grain.MapDataset` is a position only.
    """

    def __init__(
        self,
        where: Where | Records,
        *,
        columns: Sequence[str] | None = None,
        decode: Decode | None = None,
        **options: Any,  # noqa: ANN401 - those of ffrecord.open
    ) -> None:
        """Store the arguments; open nothing yet.

        Args:
            where: as for `ffrecord.open`: files, folders, a daemon, a store; or a reader or a view
                in the format "numpy", such as a `mix`, which keeps its options.
            columns: those to give out; by default all.
            decode: decoders by column; see `ffrecord.decode`.
            options: of `ffrecord.open`.
        """
        if isinstance(where, Records) and options:
            raise ValueError(f"give {', '.join(options)} where {where!r} was opened")
        if isinstance(where, Records) and where.format != "numpy":
            raise ValueError(f"{where!r} has the format {where.format}; Grain takes numpy")
        self._records = where if isinstance(where, Records) else open_records(where, **options)
        self._columns = names_of(columns)
        self._decode = decode

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, record_key: SupportsIndex) -> Any:  # noqa: ANN401 - a dict or bytes
        """One record."""
        return self.__getitems__([operator.index(record_key)])[0]

    def __getitems__(self, record_keys: Sequence[SupportsIndex]) -> list[Any]:
        """Many records, read in one submission."""
        batch = self._batch([operator.index(key) for key in record_keys])
        kinds = {name: batch.kind(name).type for name in batch.columns}
        views = {name for name, kind in kinds.items() if kind == "bytes"} - set(batch.decoded)
        if not batch.columns:
            return list(batch) if None in batch.decoded else [one.tobytes() for one in batch]
        return [
            # Copies: a view that is kept would keep the whole batch.
            {
                name: one.tobytes() if name in views and one is not None else one
                for name, one in record.items()
            }
            for record in batch
        ]

    # Grain calls this when it may read several at once.
    _getitems = __getitems__

    def read(self, indices: npt.ArrayLike) -> dict[str, Any]:
        """Read a batch by column, in one submission, for `map` after `batch` of the indices.

        Returns:
            Arrays of shape (n, *shape) for numbers, which JAX takes by DLPack; lists for bytes (of
            uint8 arrays, views of one block) and text. Plain bytes are the column `record`.

        Raises:
            IndexError, CorruptionError, OSError: as `Reader.read`.
        """
        batch = self._batch(indices)
        if not batch.columns:
            return {"record": list(batch)}
        return {name: batch[name] for name in batch.columns}

    def __repr__(self) -> str:
        columns = "" if self._columns is None else f", columns={list(self._columns)}"
        return f"ffrecord.grain.DataSource({self._records.fingerprint}{columns})"

    @property
    def records(self) -> Records:
        """The records that it reads."""
        return self._records

    @property
    def paths(self) -> list[str]:
        """Names of the files; none of a view."""
        files = self._records.files if isinstance(self._records, Reader) else ()
        return [file.name for file in files]

    def _batch(self, indices: npt.ArrayLike) -> Batch:
        batch = self._records.read(indices, decode=self._decode)
        return batch if self._columns is None else batch.only(self._columns)


class BatchSource:
    """Whole batches as a source for `grain.MapDataset.source`: element i is the batch of step i.

    The order is ours, not Grain's, which spends more time on the index of each record than its
    read takes. An epoch has each record once, in an order of its own; its last batch may be
    smaller. `[rank::world_size]` of the dataset gives each process its share. Threads may share a
    source. Its `repr` names the data, order and size: save it with the state of an iterator, which
    is a position only, and compare before you resume.
    """

    def __init__(
        self,
        source: DataSource | Where | Records,
        batch_size: int,
        *,
        seed: int = 0,
        epochs: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        """Define the batches; read nothing yet.

        Args:
            source: whose `read` reads a batch; or what `DataSource` takes.
            batch_size: records of a batch.
            seed: of the order, 0 to 2**64 - 1. The order is that of `ffrecord.torch.Sampler`.
            epochs: how many follow each other. Grain's `repeat` would repeat the same order.
            shuffle: False leaves the records as they lie. True over a `mix` is its stream, which
                goes on from epoch to epoch.
            drop_last: leave out the last batch of an epoch if it is smaller.

        Raises:
            ValueError: `batch_size` or `epochs` is not positive, or `seed` out of range.
            TypeError: `batch_size` or `epochs` is not a whole number.
        """
        check_counts(1, batch_size=batch_size, epochs=epochs)
        self._source = source if isinstance(source, DataSource) else DataSource(source)
        self._size = int(batch_size)
        self._seed = seed
        self._epochs = int(epochs)
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._count = len(self._source)
        if self._count:
            self._order(0)

    def __len__(self) -> int:
        return self._steps * self._epochs

    def __getitem__(self, record_key: SupportsIndex) -> dict[str, Any]:
        """The batch of one step, as `DataSource.read` returns it.

        Raises:
            IndexError: there is no such step; otherwise as `DataSource.read`.
        """
        key = operator.index(record_key)
        if not 0 <= key < len(self):
            raise IndexError(f"batch {key} of {len(self)}")
        epoch, step = divmod(key, self._steps)
        first = step * self._size
        size = min(self._size, self._count - first)
        return self._source.read(IndexBatch(self._order(epoch), first, size))

    def __repr__(self) -> str:
        how = f"seed={self._seed}" if self._shuffle else "shuffle=False"
        how += ", drop_last=True" if self._drop_last else ""
        return (
            f"ffrecord.grain.BatchSource({self._source!r}, {self._size}, {how}, "
            f"epochs={self._epochs})"
        )

    @property
    def _steps(self) -> int:
        """Batches of an epoch."""
        whole, rest = divmod(self._count, self._size)
        return whole + (rest > 0 and not self._drop_last)

    def _order(self, epoch: int) -> EpochOrder:
        return EpochOrder.of(self._source.records, self._seed, epoch, shuffle=self._shuffle)
