"""CSV and TSV, plain or gzip, with the names of columns in the first line; read by pyarrow."""

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from ffrecord.pack import _places
from ffrecord.pack._csv_quotes import blocks_of
from ffrecord.pack._cutting import is_plain, line_marks, lines_in, lines_of, parts_between
from ffrecord.pack._decompressed import open_stream
from ffrecord.pack._source import WHOLE, Part, needed
from ffrecord.pack._table import Tabular

_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_BLOCK_BYTES = 4 << 20
_ALL = Part(0, WHOLE, 0)
# Only what is written again as it was: 007, +1 and 1e5 are text, as numbers of 19 digits are.
_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_FLOAT = r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?$"
# With a zero at the end that is not the only digit behind the point.
_PADDED = r"\.[0-9]+0$"
_BOOL = r"^(true|false)$"
# A float keeps 15 digits, whichever they are. So longer texts may be others when they are written
# again, but for those of 0.x, which have not more digits than that.
_KEPT_CHARS = len("123456789012.345")
_BELOW_ONE = r"^-?0"
_ZEROS_AT_END = r"\.?0*$"


def is_csv(path: str) -> bool:
    """Recognised by its name, since its content may be any text."""
    return path.endswith(_SUFFIXES)


def _delimiter_of(path: str) -> str:
    return "\t" if ".tsv" in path[-7:] else ","


class CsvSource(Tabular):
    """A column for each name in the first line: integers, floats or true and false, else text.

    A first pass over all rows finds the types. A column has numbers only if each of its values is
    one in its usual form; so numbers that are names, such as 007, stay text. Nothing between two
    separators is null, and "" is an empty text.
    """

    what = "CSV file"
    finds_types = True

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The names, and the types that all rows have."""
        self._rows: dict[str, int] = {}
        if (found := self.read_before()) is not None:
            self._check_names(found.names)
            return found
        pa = needed("pyarrow", self.what)
        names = self._names(self.path)
        types = {name: _Fitting() for name in names}
        for path in self.options.together or (self.path,):
            if self._names(path) != names:
                raise ValueError(
                    f"{path} has the columns {', '.join(self._names(path))}, and {self.path} has "
                    f"{', '.join(names)}: pack them separately"
                )
            self._rows[path] = 0
            for batch in self._texts(path, names):
                self._rows[path] += len(batch)
                for name, left in types.items():
                    left.look(batch.column(name))
        return pa.schema([(name, left.type()) for name, left in types.items()])

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return runs of lines, if each row is a line."""
        like = self.options.like
        counted = like if isinstance(like, CsvSource) else self
        rows = counted._rows.get(self.path)
        whole = super().cuts(size_bytes)
        if rows is None or self.size_bytes <= size_bytes or not is_plain(self.path):
            return whole
        if rows != _rows_if_lines(self.path, has_one_column=len(self.found.names) == 1):
            return whole
        # pyarrow drops a mark of UTF-8 where it begins to read, and here it would be a value.
        marks = line_marks(self.path, size_bytes, lambda head: not head.startswith(BOM_UTF8))
        parts = parts_between(marks, size_bytes)
        return [part._replace(first=max(part.first - 1, 0)) for part in parts]  # Names come first.

    def tables(
        self, names: list[str], part: Part, skipped: Counter[str]
    ) -> Iterator[tuple[Any, int]]:
        """Yield the rows of each block."""
        pa = needed("pyarrow", self.what)
        wanted = pa.schema([self.found.field(name) for name in names])
        with _places.open_input(self.path) as raw:
            for batch in self._batches(raw, self.path, self.found.names, part):
                arrays = [batch.column(f.name).cast(f.type) for f in wanted]
                yield pa.Table.from_arrays(arrays, schema=wanted), raw.tell() - part.begin

    def _check_names(self, names: list[str]) -> None:
        if (own := self._names(self.path)) != list(names):
            raise ValueError(
                f"{self.path} has the columns {', '.join(own)}, and the first file has "
                f"{', '.join(names)}: pack them separately"
            )

    def _names(self, path: str) -> list[str]:
        with _places.open_input(path) as raw, self._naming(path):
            first = next(self._blocks(raw, path, _ALL), b"")
            names = list(self._parsed(first, path, None, is_first=True).schema.names)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{path} has several columns called '{twice}': rename them")
        return names

    def _texts(self, path: str, names: list[str]) -> Iterator[Any]:
        with _places.open_input(path) as raw:
            yield from self._batches(raw, path, names, _ALL)

    def _batches(self, raw: BinaryIO, path: str, names: list[str], part: Part) -> Iterator[Any]:
        with self._naming(path):
            for number, block in enumerate(self._blocks(raw, path, part)):
                if len(names) > 1 and not block.strip(b"\r\n"):
                    continue
                table = self._parsed(block, path, names, is_first=number + part.begin == 0)
                if table.column_names != names:
                    raise ValueError(f"{path} begins with a blank line: remove it")
                yield table

    def _blocks(self, raw: BinaryIO, path: str, part: Part) -> Iterator[bytes]:
        file = open_stream(raw, path, part.begin, part.end)
        return blocks_of(file, path, _delimiter_of(path), _BLOCK_BYTES)

    def _parsed(self, block: bytes, path: str, names: list[str] | None, *, is_first: bool) -> Any:  # noqa: ANN401
        """A block as a table; the first has the names. pyarrow gets no file of Python's.

        Its threads would read that on when nobody wants it any more, also when Python has ended.
        """
        pa, reader = needed("pyarrow", self.what), needed("pyarrow.csv", self.what)
        text = {name: pa.string() for name in names or ()}
        if not is_first and block.startswith(BOM_UTF8):
            block = BOM_UTF8 + block  # A copy, for pyarrow drops one.
        return reader.read_csv(
            pa.BufferReader(block),
            reader.ReadOptions(block_size=len(block) + 1, column_names=None if is_first else names),
            reader.ParseOptions(
                delimiter=_delimiter_of(path),
                newlines_in_values=True,
                # In a file of one column, a line with nothing in it is a row.
                ignore_empty_lines=names is None or len(names) > 1,
            ),
            reader.ConvertOptions(
                column_types=text,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Name the file and the remedy for what pyarrow refuses in a text, which is not damage."""
        pa = needed("pyarrow", self.what)
        try:
            yield
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            said = str(error).partition("\n")[0]
            raise ValueError(f"{path} is no CSV of UTF-8: {said}") from None


def _rows_if_lines(path: str, *, has_one_column: bool) -> int:
    """The rows of a file, with its names of columns but without blank lines, if each is a line.

    A row of several lines has at least two that are not blank: the first and the last. So if there
    are as many rows as lines that are not blank, each row is a line. In a file of one column, a
    blank line is a row, too, so all lines count. -1 if lines end otherwise.
    """
    found, is_cut_off = -1, False
    with _places.open_input(path) as file:
        while data := lines_of(file, _BLOCK_BYTES):
            if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
                return -1
            found += data.count(b"\n") if has_one_column else lines_in(data)
            is_cut_off = not data.endswith(b"\n")
    return found + (has_one_column and is_cut_off)


_FITTING = {"int": _INTEGER, "float": _FLOAT, "bool": _BOOL, "null": None}


class _Fitting:
    """The types that all values of a column have, as far as they were looked at."""

    def __init__(self) -> None:
        self._left = set(_FITTING)
        self._decimals: set[int] = set()
        """How many digits values have behind the point, if they may be floats."""
        self._has_padding = False
        """Whether one of these ends in a zero that no program writes unless others end there."""

    def look(self, array: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        """Remove the types that a value does not have."""
        if array.null_count == len(array):
            return
        import pyarrow.compute as pc

        self._left.discard("null")
        for name in tuple(self._left):
            matched = pc.match_substring_regex(array, _FITTING[name])
            if not pc.all(matched).as_py():  # Nulls do not count.
                self._left.discard(name)
        if "float" in self._left and not _are_kept(array):
            self._left.discard("float")
        if "float" in self._left:
            point = pc.find_substring(array, ".")
            behind = pc.subtract(pc.subtract(pc.binary_length(array), point), 1)
            counts = pc.if_else(pc.less(point, 0), 0, behind)
            self._decimals.update(pc.unique(counts.combine_chunks()).drop_null().to_pylist())
            padded = pc.any(pc.match_substring_regex(array, _PADDED)).as_py()
            self._has_padding = self._has_padding or bool(padded)

    def type(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The type of the column. 1.9 and 1.10 are names, and 1.90 and 2.10 are numbers."""
        pa = needed("pyarrow", "a CSV file")
        left = self._left
        if self._has_padding and len(self._decimals) > 1:
            left = left - {"float"}
        kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
        found = [] if "null" in left else [kind for name, kind in kinds.items() if name in left]
        return found[0] if found else pa.string()


def _are_kept(array: Any) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether a float keeps all digits of each of these numbers."""
    import pyarrow.compute as pc

    long = array.filter(pc.greater(pc.binary_length(array), _KEPT_CHARS))
    long = long.filter(pc.invert(pc.match_substring_regex(long, _BELOW_ONE)))
    digits = pc.replace_substring_regex(long, _ZEROS_AT_END, "")
    # Python writes large ones without an exponent, and is slower.
    others = digits.filter(pc.not_equal(digits, long.cast("float64").cast("string")))
    return all(repr(float(each)).removesuffix(".0") == each for each in others.to_pylist())
