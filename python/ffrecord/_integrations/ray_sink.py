"""Datasets of Ray Data as record files."""

import contextlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray.data.block  # type: ignore[import-not-found, import-untyped, unused-ignore]

from ffrecord._base.destination import destination_path
from ffrecord._read.reader import open as open_records
from ffrecord._tables.arrow_schema import KEY
from ffrecord._tables.logical import LogicalSchema
from ffrecord._tables.untyped import joint_schema, untyped, with_nulls_of
from ffrecord._write.new_folder import check_vacant, new_folder, part_name
from ffrecord._write.tables import write_table

if TYPE_CHECKING:
    import pyarrow as pa


# The name of a file of rows, and its Arrow schema as bytes.
_Written = tuple[str, bytes]
# Such a name ends with this where a column has no type yet: the rows are in a file of Arrow's.
_ARROW = ".arrow"
# Options of `Writer` that make sense for each of many new files.
_OPTIONS = ("compress", "level", "align", "metadata", "dictionary", "key", "copy_columns")


class RecordSink(ray.data.Datasink[list[_Written]]):  # type: ignore[misc, unused-ignore]
    """Where Ray Data writes a dataset: a folder of record files, one for each task that writes.

        rows.write_datasink(ffrecord.ray.RecordSink("/shared/train"))

    The folder gets its name when all files are complete and durable; if the job fails, there is
    none. Each row is written once, also if Ray runs a task again. Rows keep the order that Ray
    gives them (`preserve_order` of its execution options). Types are those of
    `ffrecord.write_table`, and Ray's tensors of one shape are columns with that shape. A column
    without a value in all rows of a task has the type that it has in other tasks.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        **options: Any,  # noqa: ANN401 - those of Writer
    ) -> None:
        """Check the place; nothing is written yet.

        Args:
            path: of the folder, on a file system that all nodes of Ray see under that path.
            overwrite: replace a folder of record files that exists.
            options: of `ffrecord.Writer`, such as `compress="zstd"`: those of new files.

        Raises:
            ValueError: the path names a `.ffr` file: many tasks cannot write one; or it is empty,
                or the address of a store.
            TypeError: there is no such option.
            ConflictError: the folder exists, and may not be replaced.
            OSError: its parent is missing or cannot be written to.
        """
        super().__init__()
        if wrong := [name for name in options if name not in _OPTIONS]:
            raise TypeError(
                f"RecordSink has no option {wrong[0]!r}: the options of its new files are "
                f"{', '.join(_OPTIONS)}"
            )
        self._path = destination_path(path, "the folder")
        if self._path.suffix == ".ffr":
            raise ValueError(f"{self._path} names one file; name a folder, of a file for each task")
        check_vacant(self._path, overwrite)
        self._overwrite = overwrite
        self._options = options
        self._written: Path | None = None  # The files of tasks, also of those that Ray ran again.
        self._making = contextlib.ExitStack()  # The driver's.

    def __getstate__(self) -> dict[str, Any]:
        """The members that tasks need; the folder stays the driver's."""
        return self.__dict__ | {"_making": None}

    def get_name(self) -> str:
        """The name of its tasks in Ray."""
        return "FFRecord"

    def on_write_start(self, schema: "pa.Schema | None" = None) -> None:
        """Make the folder for the files; Ray calls it in the driver, before any task."""
        check_vacant(self._path, self._overwrite)  # A sink may be used again.
        self._parts = self._making.enter_context(new_folder(self._path, self._overwrite))
        self._written = self._parts.parent / "written"
        self._written.mkdir()

    def write(self, blocks: Iterable[Any], ctx: Any) -> list[_Written]:  # noqa: ANN401 - Ray's
        """Write the blocks of one task as one file; return it, or nothing without rows.

        Raises:
            ValueError: the blocks have columns of different types, or others than another task.
        """
        import pyarrow as pa

        assert self._written is not None
        tables = [ray.data.block.BlockAccessor.for_block(block).to_arrow() for block in blocks]
        tables = [_plain(table) for table in tables if table.num_rows]
        if not tables:
            return []
        schema = joint_schema([table.schema for table in tables])
        table = pa.concat_tables([each.cast(schema) for each in tables])
        # A task that Ray runs again writes another file.
        name = f"{ctx.task_idx:06}-{uuid.uuid4().hex}.ffr"
        if untyped(schema):  # The types are those of other tasks.
            name += _ARROW
            with pa.ipc.new_file(self._written / f".{name}", schema) as file:
                file.write_table(table)
            os.rename(self._written / f".{name}", self._written / name)
        else:
            write_table(table, self._written / name, **self._options)
        self._check_with_others(self._written / name)
        return [(name, schema.serialize().to_pybytes())]

    def _check_with_others(self, own: Path) -> None:
        """Check a file with one of another task: else only the end of the job would tell."""
        others = [each for each in own.parent.glob("[0-9]*") if each != own]
        # Files with all types tell more.
        other = min(others, key=lambda each: (each.suffix == _ARROW, each.name), default=None)
        if other is None:
            return
        if _ARROW in (own.suffix, other.suffix):
            joint_schema([_schema_of(other), _schema_of(own)])
            return
        with open_records(other) as one, open_records(own) as two:
            LogicalSchema.of_any(
                [one.logical, two.logical], ("one task", "another task").__getitem__
            )

    def on_write_complete(self, write_result: Any) -> None:  # noqa: ANN401 - Ray's
        """Name the files that count, and publish the folder.

        Raises:
            ValueError: there are no rows, tasks wrote columns of different types, or a column has
                no value in any row.
        """
        with self._making:
            returned = [each for found in write_result.write_returns for each in found]
            written = sorted(returned, key=lambda each: _task_of(each[0]))
            if not written:  # Ray does not even begin to write a dataset without blocks.
                raise ValueError(f"{self._path} is not made: the dataset has no rows")
            assert self._written is not None
            schemas = _schemas_together([each for _, each in written])
            for number, (name, own) in enumerate(written):
                part = self._parts / part_name(number, len(written))
                if (schema := schemas[own]) is None:
                    os.rename(self._written / name, part)
                else:
                    self._write_again(self._written / name, part, schema)
            open_records(self._parts).close()  # Whether they belong together.

    def _write_again(self, rows: Path, part: Path, schema: "pa.Schema") -> None:
        """Write the rows of a task with what the rows of others say of their columns."""
        import pyarrow as pa

        if names := untyped(schema):
            raise ValueError(
                f"{self._path} is not made: column {names[0]!r} has no value in any row; give it a"
                " type, or drop it"
            )
        if rows.suffix == _ARROW:
            with pa.memory_map(str(rows)) as file:
                write_table(pa.ipc.open_file(file).read_all().cast(schema), part, **self._options)
            return
        with open_records(rows) as reader:
            tables = (batch.to_arrow().cast(schema) for batch in reader.batches())
            batches = (each for table in tables for each in table.to_batches())
            stream = pa.RecordBatchReader.from_batches(schema, batches)
            write_table(stream, part, **self._options)

    def on_write_failed(self, error: Exception) -> None:
        """Remove the files."""
        with contextlib.suppress(type(error)), self._making:
            raise error


def _task_of(name: str) -> tuple[int, str]:
    """The number of the task in the name of its file, by which files are in order."""
    return int(name.partition("-")[0]), name


def _schemas_together(written: list[bytes]) -> dict[bytes, "pa.Schema | None"]:
    """By schema of a task, the one to write its rows with again; None if they may stay."""
    import pyarrow as pa

    schemas = {each: pa.ipc.read_schema(pa.py_buffer(each)) for each in written}
    if any(map(untyped, schemas.values())):
        joint = joint_schema(list(schemas.values()))
        typed = {each: joint if untyped(own) else own for each, own in schemas.items()}
    else:
        typed = schemas
    others = list(dict.fromkeys(each.remove_metadata() for each in typed.values()))
    wanted = {each: with_nulls_of(own, others) for each, own in typed.items()}
    return {each: None if wanted[each] == own else wanted[each] for each, own in schemas.items()}


def _schema_of(written: Path) -> "pa.Schema":
    """Arrow's schema of the rows of a task."""
    import pyarrow as pa

    if written.suffix == _ARROW:
        with pa.memory_map(str(written)) as file:
            return pa.ipc.open_file(file).schema
    with open_records(written) as reader:
        return pa.ipc.read_schema(pa.py_buffer(reader.metadata()[KEY]))


def _plain(table: "pa.Table") -> "pa.Table":
    """The table with Ray's tensors as those of Arrow."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if not field.type.__class__.__module__.startswith("ray."):
            continue
        made = pa.chunked_array([_tensors(field.name, each) for each in table.column(place).chunks])
        table = table.set_column(place, pa.field(field.name, made.type, field.nullable), made)
    return table


def _tensors(name: str, chunk: Any) -> "pa.ExtensionArray":  # noqa: ANN401 - of a type of Ray's
    """Tensors of Ray's as those of Arrow, null where they are."""
    import pyarrow as pa

    if "PythonObject" in type(chunk.type).__name__:
        raise ValueError(
            f"column '{name}' has Python objects, which Ray pickles: make numbers, text or bytes "
            "of them"
        )
    # Under a null there may be nothing; only what is there has a shape.
    known = chunk.drop_null().to_numpy(zero_copy_only=False)
    if known.dtype == object:
        raise ValueError(
            f"column '{name}' has tensors of several shapes: give them one shape, or write them as "
            "lists"
        )
    if not len(known):  # pyarrow makes no tensors of nothing.
        shape, number = chunk.type.shape, chunk.type.storage_type.value_type
        kind = pa.fixed_shape_tensor(number, shape, permutation=range(len(shape)))
        return pa.ExtensionArray.from_storage(kind, pa.nulls(len(chunk), kind.storage_type))
    made = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(known))
    if not chunk.null_count:
        return made
    place = np.cumsum(chunk.is_valid().to_numpy(zero_copy_only=False)) - 1
    rows = pa.array(place, mask=chunk.is_null().to_numpy(zero_copy_only=False))
    return pa.ExtensionArray.from_storage(made.type, made.storage.take(rows))
