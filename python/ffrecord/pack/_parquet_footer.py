"""Facts about columns in the footer of a Parquet file.

pyarrow tells it too, and ends the process if the footer is damaged.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from ffrecord.pack import _places

_MAGIC = b"PAR1"
_SIZE_MAX = 1 << 20  # A larger one is not looked at: it takes too long.
# Numbers of fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData in parquet.thrift.
_ROW_GROUPS, _COLUMNS, _METADATA = 4, 1, 3
_PATH, _COMPRESSED_BYTES, _DATA_OFFSET, _DICTIONARY_OFFSET, _STATISTICS = 3, 7, 9, 11, 12
_NULL_COUNT = 3
_DEPTH_MAX = 16


class Chunk(NamedTuple):
    """The values of a column in one group of rows."""

    path: str
    """The names from the column to what is in it, joined by dots."""
    end: int
    """Where its bytes end in the file."""
    null_count: int | None
    """None if the file does not say it."""


class Footer(NamedTuple):
    """The footer, as far as it was read."""

    begin: int
    """Where it is in the file."""
    chunks: list[Chunk] | None
    """None if it is damaged, or too large to be looked at."""


def footer_of(path: str) -> Footer:
    """Read the footer of a file that ends as Parquet files do."""
    with _places.open_input(path) as file:
        file.seek(-4 - len(_MAGIC), 2)
        size = int.from_bytes(file.read(4), "little")
        begin = max(file.tell() - 4 - size, 0)
        if size > _SIZE_MAX:
            return Footer(begin, None)
        file.seek(begin)
        data = file.read(size)
    try:
        return Footer(begin, list(_chunks(_Compact(data).struct())))
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        return Footer(begin, None)


def _chunks(metadata: dict[int, Any]) -> Iterator[Chunk]:
    for group in metadata.get(_ROW_GROUPS, ()):
        for column in group[_COLUMNS]:
            found = column[_METADATA]
            begin = min(found[_DATA_OFFSET], found.get(_DICTIONARY_OFFSET) or found[_DATA_OFFSET])
            path = ".".join(name.decode() for name in found[_PATH])
            nulls = found.get(_STATISTICS, {}).get(_NULL_COUNT)
            yield Chunk(path, begin + found[_COMPRESSED_BYTES], nulls)


class _Compact:
    """Reads Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._depth = 0

    def struct(self) -> dict[int, Any]:
        """The fields of a struct by their numbers."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ValueError("nested too deeply")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            found[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        self._depth -= 1
        return found

    def _value(self, kind: int) -> Any:  # noqa: ANN401 - of any type
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            return self._list()
        if kind == 12:
            return self.struct()
        if kind in (1, 2, 3):
            return self._byte()
        if kind == 7:
            return self._bytes(8)
        raise ValueError("a type that the footer does not have")

    def _list(self) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self._data) - self._at:
            raise ValueError("more items than bytes")
        return [self._value(head & 15) for _ in range(count)]

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, size: int) -> bytes:
        self._at += size
        if self._at > len(self._data):
            raise ValueError("too short")
        return self._data[self._at - size : self._at]

    def _varint(self) -> int:
        found = shift = 0
        while (byte := self._byte()) & 0x80:
            found |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise ValueError("too long")
        return found | byte << shift

    def _integer(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
