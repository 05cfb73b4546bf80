"""Sources of tables: whatever pyarrow reads, or shows its data as Arrow does."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ffrecord._tables.arrow_types import is_bf16, meaning_of
from ffrecord._tables.arrow_writing import as_table
from ffrecord._tables.formats import pyarrow
from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._ahead import ahead
from ffrecord.pack._passed import rows_of_table
from ffrecord.pack._selection import Selection, classes_in
from ffrecord.pack._source import (
    WHOLE,
    Chunk,
    Part,
    Progressed,
    Source,
    SourceOptions,
    needed,
)
from ffrecord.pack._table_schema import TableSchema

# Limits for rows that are converted at a time.
ROWS_BYTES, ROWS_MAX = 4 << 20, 1 << 14


class Tabular(Source):
    """Rows of files of one kind, with types of Arrow, which are kept.

    The columns are those of all files that are packed together. A table that cannot be kept is
    refused before anything is written.
    """

    what = ""
    """The name of a file in errors."""
    meant: tuple[str, ...] = ("columns", "drop", "cast")
    """Options that apply to it."""
    finds_types = False
    """Whether the schema follows from the rows of all files, which are looked at together."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Read the schemas; see `open_source` for arguments and errors."""
        options.allow(path, self.what, *self.meant)
        needed("pyarrow", self.what)
        self.skipped = Counter()
        self.unread: Counter[str] = Counter()
        """The count, by reason, of all that opening it has left out."""
        self.size_bytes = _places.size_of(path) if _places.is_file(path) else 0
        self.path = path
        self.options = options
        self._gives_values = False
        known = options.known
        if known is None and isinstance(options.like, Tabular):
            known = options.like.schema
        with self.reading():
            self.found = self.arrow_schema()
            """The schema of the file, before columns are chosen."""
            self.selection = Selection(self.found, options, path)
        self.schema: TableSchema = known or self._schema_of_all(options.together)
        self.classes = classes_in(self.found.metadata or {}, list(self.schema.arrow.names))
        self._check_alike(self.schema)

    @abstractmethod
    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The schema of the file."""

    def read_before(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The schema that was found in the rows of all files before; None if it was not."""
        like = self.options.like
        known = self.options.known or (like.schema if isinstance(like, Tabular) else None)
        return None if known is None else known.found

    @abstractmethod
    def tables(
        self, names: list[str], part: Part, skipped: Counter[str]
    ) -> Iterator[tuple[Any, int]]:
        """Yield the rows of these columns as tables or batches, and the bytes behind each.

        Only those of a part, from whose beginning bytes count; `skipped` takes what is left out.

        Raises:
            CorruptionError: the file is damaged.
        """

    def is_wanted(self, name: str) -> bool:
        """Whether a column is packed, as options of the user say."""
        columns, drop = self.options.columns, self.options.drop
        return name not in drop and (not columns or name in columns)

    def may_lack_items(self, name: str) -> bool:
        """Whether items of lists in this column may be null, as far as is known without reading."""
        return True

    @property
    def _arrow_fields(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        return self.schema.arrow

    def give_values(self) -> None:
        """Let samples be dicts of plain values."""
        self._gives_values = True

    def samples(self) -> Iterator[Progressed]:
        """Yield tables of rows; or rows, after `give_values`.

        Raises:
            CorruptionError: the file is damaged.
            ValueError: a value does not fit its column.
        """
        yield from self.samples_of(Part(0, WHOLE, self.size_bytes), self.skipped)

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return parts of about this size, of a file that can be read from somewhere else."""
        return [Part(0, WHOLE, self.size_bytes)]

    def samples_of(self, part: Part, skipped: Counter[str]) -> Iterator[Progressed]:
        """Yield the samples of a part, as `samples`."""
        if part.begin == 0:
            skipped.update(self.unread)
        chunks = ahead(self._chunks(part, skipped), 1)
        if not self._gives_values:
            yield from chunks
            return
        for chunk, done_bytes in chunks:
            for row in rows_of_table(chunk.table, self.path):
                yield row, done_bytes

    def _chunks(self, part: Part, skipped: Counter[str]) -> Iterator[tuple[Chunk, int]]:
        first = part.first
        with self.reading():
            for table, done_bytes in self.tables(self.selection.inputs, part, skipped):
                made = self.selection.apply(table, first, self.schema.arrow)
                yield Chunk(made, first, self.path), done_bytes
                first += len(made)

    def _schema_of_all(self, paths: tuple[str, ...]) -> TableSchema:
        """The columns of all files, the first of which is this."""
        if self.finds_types:
            return TableSchema(self.selection.schema.arrow, found=self.found)
        others = [
            type(self)(path, self.options._replace(known=self.selection.schema, together=()))
            for path in paths
            if path != self.path
        ]
        schema = self.selection.schema
        sources = [self, *others]
        nullable = {
            field.name
            for source in sources
            for field in source.selection.schema.arrow
            if field.nullable
        }
        pa = pyarrow()
        fields = [f.with_nullable(f.name in nullable) for f in schema.arrow]
        schema = TableSchema(pa.schema(fields, metadata=schema.arrow.metadata))
        return schema.laid_out_for(
            table for source in sources for table in source._tables_to_look_at(schema)
        )

    def _tables_to_look_at(self, schema: TableSchema) -> Iterator[Any]:
        names = [name for name in schema.names_to_look_at() if self.may_lack_items(name)]
        if not names:
            return
        fields = [schema.arrow.field(name) for name in names]
        wanted = pyarrow().schema(fields)
        first = 0
        inputs = self.selection.inputs
        with self.reading():
            for table, _ in self.tables(inputs, Part(0, WHOLE, 0), Counter()):
                made = self.selection.apply(table, first, wanted)
                first += len(made)
                try:
                    yield made
                except ValueError as error:
                    raise ValueError(f"{self.path}: {error}") from None

    def _check_alike(self, known: TableSchema) -> None:
        """Check that the columns of the file are those of the first; names column and types."""
        mine, first = dict(self.selection.schema.items()), dict(known.items())
        for name in (*first, *mine):
            here, there = mine.get(name), first.get(name)
            both = here is not None and there is not None
            if both and _is_alike(self.selection.schema.arrow, known.arrow, name):
                continue
            raise ValueError(
                f"{self.path}: the column '{name}' is {here or 'not there'}, and "
                f"{there or 'not there'} in the first file: --cast {name}=TYPE makes both the same "
                "type, --drop leaves the column out, or pack the files separately"
            )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Convert pyarrow's errors, which have many types and do not name the file."""
        pa = pyarrow()
        try:
            yield
        except MemoryError:
            raise
        except NotImplementedError as error:
            raise ValueError(f"{self.path} cannot be read by pyarrow: {error}") from error
        except OSError as error:
            if error.errno is not None or isinstance(error, CorruptionError):
                raise  # Else it is pyarrow's word for damage.
            raise self.damaged(error) from error
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise self.damaged(error) from error

    def damaged(self, error: Exception) -> Exception:
        """The error to raise for what pyarrow says."""
        said = str(error).partition("\n")[0]
        return CorruptionError(f"{self.path} is damaged, or no whole {self.what}: {said}")


def _is_alike(one: Any, other: Any, name: str) -> bool:  # noqa: ANN401
    mine, its = one.field(name), other.field(name)
    return meaning_of(mine.type) == meaning_of(its.type) and is_bf16(mine) == is_bf16(its)


class TableSource(Source):
    """The rows of a table, one record each; readers give the types of its columns back.

    As `ffrecord.write_table` stores them, but in as many parts as `pack` makes.
    """

    def __init__(self, table: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        """Prepare a pyarrow Table, RecordBatch or RecordBatchReader, or what has a stream of Arrow.

        Raises:
            ValueError: records cannot hold a column; its name is in the message.
            TypeError: it is no table.
            ImportError: pyarrow is not installed.
        """
        self._table = as_table(table)
        self._gives_values = False
        is_known = hasattr(self._table, "to_batches")
        schema: Any = TableSchema(self._table.schema)
        if is_known:
            names = schema.names_to_look_at()
            schema = schema.laid_out_for(iter([self._table.select(names)] if names else []))
        self.schema = schema
        self.size_bytes = int(self._table.nbytes) if is_known else 0
        self._count = len(self._table) if is_known else 0
        self.skipped = Counter()

    @property
    def _arrow_fields(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        return self.schema.arrow

    def give_values(self) -> None:
        """Let samples be dicts of plain values."""
        self._gives_values = True

    def samples(self) -> Iterator[Progressed]:
        """Yield tables of rows; or rows, after `give_values`.

        Raises:
            ValueError: a stream has a null in a column that may have none.
        """
        done = 0
        is_known = hasattr(self._table, "to_batches")
        for batch in self._table.to_batches(max_chunksize=ROWS_MAX) if is_known else self._table:
            first, done = done, done + len(batch)
            done_bytes = self.size_bytes * done // max(self._count, done, 1)
            if self._gives_values:
                rows = rows_of_table(pyarrow().Table.from_batches([batch]), "the table")
                yield from ((row, done_bytes) for row in rows)
            else:
                yield Chunk(pyarrow().Table.from_batches([batch]), first, "the table"), done_bytes
