"""Datasets of Ray Data as record files."""

import contextlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.data.block  # type: ignore[import-not-found, import-untyped, unused-ignore]

from ffrecord._read.reader import open as open_records
from ffrecord._write.new_folder import check_vacant, new_folder, part_name
from ffrecord._write.tables import write_table

if TYPE_CHECKING:
    import pyarrow as pa


class RecordSink(ray.data.Datasink[list[str]]):  # type: ignore[misc, unused-ignore]
    """Where Ray Data writes a dataset: a folder of record files, one for each task that writes.

        rows.write_datasink(ffrecord.ray.RecordSink("/shared/train"))

    The folder gets its name when all files are complete and durable; if the job fails, there is
    none. Each row is written once, also if Ray runs a task again. Rows keep the order that Ray
    gives them (`preserve_order` of its execution options). Types are those of
    `ffrecord.write_table`, and Ray's tensors of one shape are columns with that shape.
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
            options: of `ffrecord.Writer`, such as `compress="zstd"`.

        Raises:
            ValueError: the path names a `.ffr` file: many tasks cannot write one.
            ConflictError: the folder exists, and may not be replaced.
            OSError: its parent is missing or cannot be written to.
        """
        super().__init__()
        self._path = Path(os.path.abspath(path))
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
        self._parts = self._making.enter_context(new_folder(self._path, self._overwrite))
        self._written = self._parts.parent / "written"
        self._written.mkdir()

    def write(self, blocks: Iterable[Any], ctx: Any) -> list[str]:  # noqa: ANN401 - Ray's
        """Write the blocks of one task as one file; return its name, or nothing without rows."""
        import pyarrow as pa

        assert self._written is not None
        tables = [ray.data.block.BlockAccessor.for_block(block).to_arrow() for block in blocks]
        tables = [_plain(table) for table in tables if table.num_rows]
        if not tables:
            return []
        # A task that Ray runs again writes another file.
        name = f"{ctx.task_idx:06}-{uuid.uuid4().hex}.ffr"
        write_table(pa.concat_tables(tables), self._written / name, **self._options)
        return [name]

    def on_write_complete(self, write_result: Any) -> None:  # noqa: ANN401 - Ray's
        """Name the files that count, and publish the folder.

        Raises:
            ValueError: there are no rows, or tasks wrote columns of different types.
        """
        with self._making:
            assert self._written is not None
            names = sorted(name for names in write_result.write_returns for name in names)
            if not names:
                raise ValueError(f"{self._path} is not made: the dataset has no rows")
            for number, name in enumerate(names):
                os.rename(self._written / name, self._parts / part_name(number, len(names)))
            open_records(self._parts).close()  # Whether they belong together.

    def on_write_failed(self, error: Exception) -> None:
        """Remove the files."""
        with contextlib.suppress(type(error)), self._making:
            raise error


def _plain(table: "pa.Table") -> "pa.Table":
    """The table with Ray's tensors as those of Arrow."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if not field.type.__class__.__module__.startswith("ray."):
            continue
        chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in table.column(place).chunks]
        if any(chunk.dtype == object for chunk in chunks):
            raise ValueError(
                f"column '{field.name}' has tensors of several shapes: give them one shape, or "
                "write them as lists"
            )
        made = pa.chunked_array(
            [pa.FixedShapeTensorArray.from_numpy_ndarray(chunk) for chunk in chunks]
        )
        table = table.set_column(place, pa.field(field.name, made.type, field.nullable), made)
    return table
