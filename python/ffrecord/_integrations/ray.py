"""Record files in Ray Data; `pip install 'ray[data]'`.

    rows = ffrecord.ray.read("ffrecord://host/train", columns=["label", "image"])
    rows.map_batches(embed).write_parquet("embedded")

The same as `ray.data.read_datasource(ffrecord.ray.RecordSource(...))`.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ffrecord._read.batch import Batch
from ffrecord._read.locations import Where
from ffrecord._read.reader import Reader
from ffrecord._read.reader import open as open_records
from ffrecord._read.records import OnCorrupt, Records, check_on_corrupt
from ffrecord._tables.schema import names_of
from ffrecord.errors import ConflictError

if TYPE_CHECKING:
    import pyarrow as pa

    from ffrecord.decode._decoder import Decode

try:
    import ray.data.block  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import ray.data.extensions  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError("ffrecord.ray needs Ray Data: pip install 'ray[data]'") from error

__all__ = ["RecordSource", "read"]

# The sizes of so many records are looked up to estimate those of all.
_SAMPLED = 4096


def read(
    where: Where | Records,
    *,
    columns: Sequence[str] | None = None,
    decode: "Decode | None" = None,
    on_corrupt: OnCorrupt = "raise",
    blocks: int | None = None,
    **options: Any,  # noqa: ANN401 - those of ffrecord.open
) -> Any:  # noqa: ANN401 - ray.data.Dataset
    """Make a dataset of Ray Data from record files; nothing but their index is read yet.

    Args:
        where: as for `RecordSource`, as are the other arguments but `blocks`.
        columns: those to give out; by default all.
        decode: decoders by column; see `ffrecord.decode`.
        on_corrupt: what to do with damaged records.
        blocks: how many ranges of records to read, one task each; by default Ray decides.
        options: of `ffrecord.open`.

    Returns:
        A ray.data.Dataset. Ray keeps the order of records if
        `ray.data.DataContext.get_current().execution_options.preserve_order` is set.

    Raises:
        ValueError, KeyError, OSError: as `RecordSource`.
    """
    source = RecordSource(where, columns=columns, decode=decode, on_corrupt=on_corrupt, **options)
    return ray.data.read_datasource(source, override_num_blocks=blocks)


class RecordSource(ray.data.Datasource):  # type: ignore[misc, unused-ignore]
    """A data source of Ray Data: blocks are tables of Arrow, read by ranges of records.

    Each task reads one range in batches of a few megabytes, the next one ahead. A row has a value
    for each column: numbers, tensors of Ray's for columns with a shape, bytes, text; records of
    plain bytes are the column `record`. bf16 is float32. Counts and schema are
    known without a read. If the data is replaced between the plan and a read, that raises
    `ConflictError`: a dataset never mixes two versions.
    """

    def __init__(
        self,
        where: Where | Records,
        *,
        columns: Sequence[str] | None = None,
        decode: "Decode | None" = None,
        on_corrupt: OnCorrupt = "raise",
        **options: Any,  # noqa: ANN401 - those of ffrecord.open
    ) -> None:
        """Open the files, to know their records.

        Args:
            where: as for `ffrecord.open`: files, folders, a daemon, a store, which all nodes of Ray
                must reach under that name; or a reader or a view, such as a `subset`.
            columns: those to give out; by default all.
            decode: decoders by column, whose values have one shape; see `ffrecord.decode`.
            on_corrupt: "raise", "skip" or "replace"; see `Records.read`. With "skip", the
                number of rows is not known before they are read.
            options: of `ffrecord.open`.

        Raises:
            ValueError: an argument is wrong; options for a reader that is open already.
            KeyError: there is no such column.
            OSError: a file is missing or cannot be read.
        """
        super().__init__()
        check_on_corrupt(on_corrupt)
        if on_corrupt == "keep":
            raise ValueError("on_corrupt is 'keep'; rows have no status: use 'skip' or 'replace'")
        if isinstance(where, Records) and options:
            raise ValueError(f"give {', '.join(options)} where {where!r} was opened")
        if isinstance(where, Records) and where.format != "numpy":
            raise ValueError(f"{where!r} has the format {where.format}; Ray takes numpy")
        records = where if isinstance(where, Records) else open_records(where, **options)
        self._plan = _Plan(
            records,
            names_of(columns),
            decode,
            on_corrupt,
            records.fingerprint,
        )
        self._count = len(records)
        self._record_bytes = _mean_size(records)
        self._schema = self._plan.schema()

    def get_name(self) -> str:
        """The name of its read tasks in Ray."""
        return "FFRecord"

    def estimate_inmemory_data_size(self) -> int:
        """The size of all records in bytes, as stored without compression."""
        return int(self._count * self._record_bytes)

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: object = None,
    ) -> list[Any]:
        """One task for each of `parallelism` ranges of records; Ray calls it.

        Args:
            parallelism: how many ranges, at most one for each record.
            per_task_row_limit: rows that a task reads at most.
            data_context: Ray's, not used.
        """
        bounds = np.linspace(0, self._count, min(parallelism, self._count) + 1).astype(int).tolist()
        return [
            self._task(begin, end, per_task_row_limit) for begin, end in itertools.pairwise(bounds)
        ]

    def _task(self, begin: int, end: int, row_limit: int | None) -> Any:  # noqa: ANN401 - Ray's
        if row_limit is not None and self._plan.on_corrupt != "skip":
            end = min(end, begin + row_limit)  # Where records are left out, Ray cuts the rows.
        count = end - begin
        facts = ray.data.block.BlockMetadata(
            num_rows=None if self._plan.on_corrupt == "skip" else count,
            size_bytes=int(count * self._record_bytes),
            input_files=_files_of(self._plan.records, begin, end),
            exec_stats=None,
        )
        work = functools.partial(self._plan.blocks, begin, end)
        return ray.data.ReadTask(work, facts, schema=self._schema, per_task_row_limit=row_limit)


@dataclass(frozen=True)
class _Plan:
    """The input of the tasks: small to send, for the records' pickle holds arguments only."""

    records: Records
    columns: tuple[str, ...] | None
    decode: "Decode | None"
    on_corrupt: OnCorrupt
    fingerprint: str

    def blocks(self, begin: int, end: int) -> "Iterator[pa.Table]":
        """The records [begin, end) as tables."""
        if self.records.fingerprint != self.fingerprint:
            raise ConflictError(
                f"{self.records!r}: the data was replaced after the dataset was made: its "
                f"fingerprint is {self.records.fingerprint}, expected {self.fingerprint}; make the "
                "dataset again"
            )
        for batch in self.records.batches(
            start=begin, stop=end, on_corrupt=self.on_corrupt, decode=self.decode
        ):
            if len(batch):
                yield self._table(batch)

    def schema(self) -> "pa.Schema | None":
        """The schema of the tables; None if there are no records."""
        if len(self.records) == 0:
            return None
        how: OnCorrupt = "raise" if self.on_corrupt == "raise" else "replace"
        return self._table(self.records.read([0], on_corrupt=how, decode=self.decode)).schema

    def _table(self, batch: Batch) -> "pa.Table":
        batch = batch if self.columns is None else batch.only(self.columns)
        made = batch.to_arrow()
        for place, name in enumerate(made.column_names):
            values = batch[name] if batch.columns else batch.whole
            if _is_tensor(values, made.field(place).type):
                tensors = ray.data.extensions.ArrowTensorArray.from_numpy(values)
                made = made.set_column(place, made.field(place).with_type(tensors.type), tensors)
        return made


def _is_tensor(values: Any, kind: Any) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether values that Arrow has as that type are numbers with a shape, none of them missing.

    Decimals and binary of a fixed size are stored like these, and are no tensors.
    """
    import pyarrow as pa

    if not isinstance(values, np.ndarray) or isinstance(values, np.ma.MaskedArray):
        return False
    is_shaped = isinstance(kind, pa.FixedShapeTensorType) or pa.types.is_fixed_size_list(kind)
    return values.ndim > 1 and bool(is_shaped)


def _mean_size(records: Records) -> float:
    """The size of a record in bytes, estimated from some of them; 0 without records."""
    count = len(records)
    if count == 0:
        return 0.0
    some = np.linspace(0, count - 1, min(count, _SAMPLED)).astype(np.int64)
    return float(records._sizes(some).mean())


def _files_of(records: Records, begin: int, end: int) -> list[str] | None:
    """Names of the files that hold records [begin, end); None of a view."""
    if not isinstance(records, Reader):
        return None
    return [
        file.name
        for file in records.files
        if file.first_index < end and begin < file.first_index + file.record_count
    ]
