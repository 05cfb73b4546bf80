"""JSON lines, plain or gzip: typed columns, or on request each line as a payload."""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import numpy as np

from ffrecord._tables.arrow_values import maker
from ffrecord._tables.formats import pyarrow
from ffrecord.pack import _places
from ffrecord.pack._ahead import ahead, mapped
from ffrecord.pack._cutting import lines_of, parts_of_lines
from ffrecord.pack._decompressed import Stream
from ffrecord.pack._json_types import (
    ConflictingTypesError,
    JsonType,
    UnsureError,
    check_text,
    float_of,
    joined_fields,
    object_of,
    type_of_array,
    type_of_value,
)
from ffrecord.pack._source import (
    WHOLE,
    Part,
    Progressed,
    Source,
    SourceOptions,
    is_label,
    needed,
)
from ffrecord.pack._table import Tabular

_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
# Read at a time; and parsed by one thread.
_BLOCK_BYTES, _PIECE_BYTES = 4 << 20, 1 << 20
# Parsers call themselves for what is nested; more brackets in a line are looked at by Python's.
_BRACKETS_MAX = 500
_ALL = Part(0, WHOLE, 0)
_BLANKS = "blank lines"
_REMEDY = "--drop leaves a column out, --raw keeps each line as it is"


def is_json_lines(path: str) -> bool:
    """Recognised by its name, since its content may be any text."""
    return path.endswith(_SUFFIXES)


def json_lines_source(path: str, options: SourceOptions) -> Source:
    """Open it: as typed columns, or as lines with `raw` and `label_field`."""
    if options.raw or options.label_field is not None:
        return JsonLinesSource(path, options)
    return JsonTable(path, options)


class Block:
    """Some whole lines of a file."""

    def __init__(self, path: str, data: bytes, begin: int, done_bytes: int) -> None:
        """Take the bytes, and where they begin in the content of the file."""
        self.path = path
        self.data = data
        self.done_bytes = done_bytes
        self._begin = begin

    def place(self, number: int) -> str:
        """The name of a line in errors, which is the given one of the block, from 0.

        Lines before the block are counted now, not while they are read.
        """
        return f"{self.path}, line {self._lines_before + number + 1}"

    @cached_property
    def _lines_before(self) -> int:
        found, left = 0, self._begin
        with _places.open_input(self.path) as raw:
            file = Stream(raw, self.path)
            while left > 0 and (piece := file.read(min(left, _BLOCK_BYTES))):
                left -= len(piece)
                found += piece.count(b"\n")
        return found

    @cached_property
    def plain(self) -> tuple[bytes, int, int] | None:
        """The block, its lines and the longest's size, if it is as a parser of streams needs it.

        A line that begins with { and ends with } is one object or several, and no part of one.
        """
        data = self.data if self.data.endswith(b"\n") else self.data + b"\n"
        found = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(found == ord("\n"))
        begins = np.concatenate(([0], ends[:-1] + 1))
        last = ends - 1
        last = np.where(found[last] == ord("\r"), last - 1, last)
        if (found[begins] != ord("{")).any() or (found[last] != ord("}")).any():
            return None
        longest = int((ends - begins).max())
        if longest > _BRACKETS_MAX:
            is_bracket = (found == ord("{")) | (found == ord("["))
            if np.add.reduceat(is_bracket, begins, dtype=np.int32).max() > _BRACKETS_MAX:
                return None
        return data, len(ends), longest

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Number in the block and content of each line that is not blank."""
        for number, line in enumerate(self.data.split(b"\n")):
            if payload := line.strip():
                yield number, payload

    @property
    def blank_count(self) -> int:
        """Lines with nothing in them."""
        if self.plain is not None:
            return 0
        lines = self.data.count(b"\n") + (not self.data.endswith(b"\n"))
        return lines - sum(1 for _ in self.lines())


def blocks_of(path: str, part: Part = _ALL) -> Iterator[Block]:
    """The lines of a part of a file, some MiB at a time."""
    with _places.open_input(path) as raw:
        stream = Stream(raw, path, part.begin, part.end)
        if not stream.is_compressed and not part.begin:
            raw.seek(0)
        file = io.BufferedReader(stream, 1 << 20) if stream.is_compressed else raw
        left = part.end - part.begin if part.end != WHOLE else 1 << 62
        begin = part.begin
        while left > 0 and (data := lines_of(file, min(_BLOCK_BYTES, left))):
            left -= len(data)
            yield Block(path, data, begin, raw.tell() - part.begin)
            begin += len(data)


def parsed_line(place: Callable[[], str], payload: bytes, *, strict: bool = True) -> Any:  # noqa: ANN401
    """The value of a line; objects with a key twice are refused if it is `strict`.

    Raises:
        ValueError: it is no JSON; names its `place`.
    """
    try:
        if not strict:
            return json.loads(payload)
        return json.loads(payload, object_pairs_hook=object_of, parse_float=float_of)
    except ConflictingTypesError as error:
        raise ValueError(f"{place()}: {error}: {_REMEDY}") from None
    except ValueError as error:
        raise ValueError(f"{place()}: not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{place()}: JSON is nested more deeply than Python can read") from None


class JsonTable(Tabular):
    """A column for each field of the lines, of the type that holds all its values exactly.

    A first pass over all lines finds the columns. pyarrow reads the lines; where it could change a
    value (an integer among floats, a date in a text), or refuses one, Python looks at each line.
    """

    what = "JSON lines file"
    finds_types = True

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The result of a pass over all lines, now or before."""
        if (found := self.read_before()) is not None:
            return found
        return self._made(self._types_of_all(self.options.together or (self.path,)))

    def _types_of_all(self, paths: tuple[str, ...]) -> dict[str, JsonType]:
        types: dict[str, JsonType] = {}
        seen = False
        for path in paths:
            for block, found in mapped(self._types_by_pyarrow, blocks_of(path)):
                seen = seen or block.plain is not None or any(block.lines())
                types = self._joined(types, block, found)
        if not types:
            empty = "all lines are blank" if not seen else "no line has a field"
            raise ValueError(
                f"{self.path} has no samples, or none with columns: {empty}; --raw keeps each line "
                "as it is"
            )
        return types

    def _made(self, types: dict[str, JsonType]) -> Any:  # noqa: ANN401
        pa = pyarrow()
        fields = []
        for name, kind in types.items():
            if not self.is_wanted(name):
                fields.append(pa.field(name, pa.string()))  # For messages: it is not read.
                continue
            try:
                fields.append(pa.field(name, kind.arrow(name)))
            except ConflictingTypesError as error:
                raise ValueError(f"{self.path}: {error}: {_REMEDY}") from None
        return pa.schema(fields)

    def _types_by_pyarrow(self, block: Block) -> dict[str, JsonType] | None:
        """The types of a block; None if each line is to be looked at."""
        try:
            table = self._by_pyarrow(block, None)
            return {n: type_of_array(a) for n, a in self._columns_of(table)}
        except UnsureError:
            return None

    def _joined(
        self, types: dict[str, JsonType], block: Block, known: dict[str, JsonType] | None
    ) -> dict[str, JsonType]:
        if known is not None:
            with suppress(ConflictingTypesError):
                return joined_fields(types, known, "")
        for number, payload in block.lines():
            value = self._object(block, number, payload)
            try:
                for name in value:
                    check_text(name, ascii(name))
                found = {n: type_of_value(v, n) for n, v in value.items() if self.is_wanted(n)}
                found |= {n: JsonType() for n in value if not self.is_wanted(n)}
                types = joined_fields(types, found, "")
                for name in (n for n, kind in found.items() if kind.kind == "int"):
                    types[name].arrow(name)  # Checks its size.
            except ConflictingTypesError as error:
                raise ValueError(f"{block.place(number)}: the column {error}: {_REMEDY}") from None
        return types

    def _columns_of(self, table: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
        for name in table.column_names:
            array = table.column(name).combine_chunks()
            if not self.is_wanted(name):
                array = pyarrow().nulls(0)
            yield name, array

    def _object(self, block: Block, number: int, payload: bytes) -> dict[str, Any]:
        value = parsed_line(lambda: block.place(number), payload)
        if not isinstance(value, dict):
            raise ValueError(f"{block.place(number)}: {value!r:.40} is no object: {_REMEDY}")
        return value

    def _by_pyarrow(self, block: Block, schema: Any) -> Any:  # noqa: ANN401
        """The block as a table.

        Raises:
            UnsureError: pyarrow cannot read it, or not exactly.
        """
        pa, reader = pyarrow(), needed("pyarrow.json", self.what)
        if (plain := block.plain) is None:
            lines = b"\n".join(payload for _, payload in block.lines())
            if not lines or (plain := Block(self.path, lines, 0, 0).plain) is None:
                raise UnsureError
        data, count, longest = plain
        options = reader.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer")
        if schema is not None:
            options.unexpected_field_behavior = "ignore"
        # Blocks are read by several threads; each is read by one.
        reading = reader.ReadOptions(use_threads=False, block_size=max(_PIECE_BYTES, longest + 2))
        try:
            table = reader.read_json(pa.BufferReader(data), reading, options)
            table.validate(full=True)
            if len(table) != count or len(set(table.column_names)) < table.num_columns:
                raise UnsureError
        except (pa.ArrowException, UnicodeDecodeError):
            raise UnsureError from None
        return table

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return runs of lines; numbers of samples are those of lines."""
        return parts_of_lines(self.path, self.size_bytes, size_bytes)

    def tables(
        self, names: list[str], part: Part, skipped: Counter[str]
    ) -> Iterator[tuple[Any, int]]:
        """Yield the lines of each block; of dropped fields nothing is read."""
        found = self.found
        wanted = pyarrow().schema([found.field(name) for name in names])

        def table_of(block: Block) -> Any:  # noqa: ANN401
            try:
                return self._by_pyarrow(block, wanted).select(names)
            except UnsureError:
                return None

        for block, read in mapped(table_of, blocks_of(self.path, part)):
            skipped[_BLANKS] += block.blank_count
            table = self._by_python(block, wanted) if read is None else read
            if len(table):
                yield table, block.done_bytes

    def _by_python(self, block: Block, wanted: Any) -> Any:  # noqa: ANN401
        pa = pyarrow()
        rows = [self._object(block, number, line) for number, line in block.lines()]
        arrays = [
            maker(field.type)([row.get(field.name) for row in rows], f"column '{field.name}'")
            for field in wanted
        ]
        stored = [pa.chunked_array([a]) for a in arrays]
        table = pa.Table.from_arrays(stored, names=[field.name for field in wanted])
        return table.cast(wanted)


class JsonLinesSource(Source):
    """Payload: the line, without its end; label: an integer field of the line, on request."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Store the file; see `open_source` for arguments and errors."""
        options.allow(path, "JSON lines kept as they are", "label_field", "raw")
        self.skipped = Counter()
        self.size_bytes = _places.size_of(path)
        label = {} if options.label_field is None else {"label": "i64"}
        self.schema = {**label, "payload": "bytes"}
        self._path = path
        self._label_field = options.label_field

    def samples(self) -> Iterator[Progressed]:
        """Yield the lines; blank ones are skipped.

        Raises:
            CorruptionError: the compressed data is damaged or truncated.
            ValueError: a line is not JSON, or has no such label; names file and line.
        """
        yield from self.samples_of(_ALL, self.skipped)

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return runs of lines; numbers of samples are those of lines."""
        return parts_of_lines(self._path, self.size_bytes, size_bytes)

    def samples_of(self, part: Part, skipped: Counter[str]) -> Iterator[Progressed]:
        """Yield the lines of a part."""
        yield from ahead(self._samples(part, skipped))

    def _samples(self, part: Part, skipped: Counter[str]) -> Iterator[Progressed]:
        for block in blocks_of(self._path, part):
            skipped[_BLANKS] += block.blank_count
            for number, each in enumerate(block.data.split(b"\n")):
                line = each.rstrip(b"\r")
                if not line.strip():
                    continue
                place = partial(block.place, number)
                sample: dict[str, Any] = {"payload": line}
                value = parsed_line(place, line, strict=False)
                if self._label_field is not None:
                    sample["label"] = self._label(place, value)
                yield sample, block.done_bytes

    def _label(self, place: Callable[[], str], value: Any) -> int:  # noqa: ANN401 - any JSON
        label = value.get(self._label_field) if isinstance(value, dict) else None
        if not isinstance(label, int) or isinstance(label, bool) or not is_label(label):
            raise ValueError(
                f"{place()}: the field {self._label_field!r} is not a 64-bit integer, but "
                f"{label!r:.80}"
            )
        return label
