"""The schemas of Arrow that files were written from, in their metadata, as Parquet keeps them."""

from collections.abc import Iterable
from typing import Any

from ffrecord import _ffrecord
from ffrecord.errors import CorruptionError

KEY = "ARROW:schema"
"""The name of the metadata: a schema as a message of Arrow's IPC format."""


class ArrowSchemas:
    """The schemas of the files of a reader; each is read when it is wanted.

    Thread-safe. After `close`, that of a single file is still known.
    """

    def __init__(self, inner: _ffrecord.RecordReader | None = None) -> None:
        """Of the files of `inner`; of none, there is no schema."""
        self._inner = inner
        self._first: bytes | None = None
        self._found: tuple[bytes, ...] | None = () if inner is None else None
        self._error: str | None = None
        self._is_begun = inner is None

    def begin(self) -> None:
        """Read that of the first file, so that batches know it when the reader is closed."""
        inner = self._inner
        if self._is_begun or inner is None:
            return
        try:
            self._first = inner.metadata(0).get(KEY) if inner.file_count else None
        except CorruptionError as error:
            self._error = str(error)
        if self._first is None or inner.file_count == 1:
            self._found = () if self._first is None else (self._first,)
        self._is_begun = True

    def close(self) -> None:
        """Read no more."""
        self._inner = None

    def found(self) -> tuple[bytes, ...]:
        """All schemas, each once; empty if a file has none.

        Raises:
            CorruptionError: the metadata of a file is damaged.
            ValueError: the reader of several files is closed.
        """
        if self._error is not None:
            raise CorruptionError(self._error)
        if self._found is None:
            inner = self._inner
            if inner is None:
                raise ValueError(
                    "the reader is closed, and the types of Arrow of its files were not read: "
                    "call to_arrow before it is closed"
                )
            self._found = _each_once(inner.metadata(i).get(KEY) for i in range(inner.file_count))
        return self._found

    @staticmethod
    def known(found: tuple[bytes, ...], error: str | None = None) -> "ArrowSchemas":
        """Schemas that were read before, or why they were not."""
        made = ArrowSchemas()
        made._found, made._error = found, error
        return made

    @staticmethod
    def of_all(parts: "Iterable[ArrowSchemas]") -> "ArrowSchemas":
        """Of batches that become one."""
        each = set(parts)
        return each.pop() if len(each) == 1 else _Several(each)

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return ArrowSchemas.known, (self.found(),)
        except (CorruptionError, ValueError, OSError) as error:
            return ArrowSchemas.known, ((), str(error))


class _Several(ArrowSchemas):
    def __init__(self, parts: set[ArrowSchemas]) -> None:
        super().__init__()
        self._parts = parts

    def found(self) -> tuple[bytes, ...]:
        each = [part.found() for part in self._parts]
        return _each_once(schema for found in each for schema in (found or (None,)))


def _each_once(schemas: Iterable[bytes | None]) -> tuple[bytes, ...]:
    """Without repetitions; none at all if one is missing."""
    known: dict[bytes, None] = {}
    for schema in schemas:
        if schema is None:
            return ()
        known[schema] = None
    return tuple(known)


NONE = ArrowSchemas()
