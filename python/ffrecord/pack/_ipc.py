"""Arrow IPC: files (Feather version 2 among them) and streams."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._source import Part, needed
from ffrecord.pack._table import ROWS_BYTES, ROWS_MAX, Tabular

_FILE, _FEATHER_1, _STREAM = b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"
_END = _STREAM + b"\0\0\0\0"


def is_ipc(path: str) -> bool:
    """Recognised by its content; a stream by the mark before its first message.

    Files of tokens, called `.bin`, may begin with that mark: it is the number -1.
    """
    if not _places.is_file(path):
        return False
    with _places.open_input(path) as file:
        head = file.read(8)
    is_stream = head[:4] == _STREAM and len(head) == 8 and not path.endswith(".bin")
    return head.startswith((_FILE, _FEATHER_1)) or is_stream


def rows_of_batch(batch: Any) -> Iterator[Any]:  # noqa: ANN401 - pyarrow has no types
    """The rows of a batch of any size, of some MiB at a time."""
    wide = max(batch.nbytes // max(len(batch), 1), 1)
    step = max(1, min(ROWS_BYTES // wide, ROWS_MAX))
    return (batch.slice(first, step) for first in range(0, len(batch), step))


def _ends_of_file(mapped: Any) -> tuple[int, int]:  # noqa: ANN401 - pyarrow has no types
    """Where a file should end, whose messages are followed by a footer, and where it does.

    Equal where the messages have no end of their own, as in files of before 2019.
    """
    pa = needed("pyarrow", IpcSource.what)
    size = mapped.size()
    footer = int.from_bytes(mapped.read_at(4, size - len(_FILE) - 4), "little")
    mapped.seek(8)  # The mark, and padding.
    messages = pa.ipc.MessageReader.open_stream(mapped)
    try:
        while True:
            messages.read_next_message()
    except StopIteration:
        pass
    except (pa.ArrowException, OSError):
        return size, size
    finally:
        end = mapped.tell()
        mapped.seek(0)
    mark = mapped.read_at(len(_END), end - len(_END))
    return (end + footer + 4 + len(_FILE), size) if mark == _END else (size, size)


class IpcSource(Tabular):
    """Columns as `write_table` stores those of the table in the file."""

    what = "Arrow IPC file"

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The schema at the front of the file."""
        with _places.open_input(self.path) as file:
            self._head = file.read(len(_FILE))
        if self._head.startswith(_FEATHER_1):
            raise ValueError(
                f"{self.path} is Feather of version 1: write it again with "
                "pyarrow.feather.write_feather(pyarrow.feather.read_table(old), new)"
            )
        with self._mapped() as mapped:
            return self._opened(mapped).schema

    def tables(
        self, names: list[str], part: Part, skipped: Counter[str]
    ) -> Iterator[tuple[Any, int]]:
        """Yield the batches of the file, large ones in pieces."""
        with self._mapped() as mapped:
            reader = self._opened(mapped)
            self._check_has_end(mapped)
            done = 0
            for batch in self._batches(reader):
                batch.validate(full=True)  # Before anything is made of what others wrote.
                done = min(self.size_bytes, done + batch.nbytes)
                yield from ((rows.select(names), done) for rows in rows_of_batch(batch))
            if self._head != _FILE:
                self._check_is_all(mapped.tell(), mapped.size())

    def _check_has_end(self, mapped: Any) -> None:  # noqa: ANN401
        """A stream that was cut between two batches is as a whole one without its last mark."""
        if self._head == _FILE:
            self._check_is_all(*_ends_of_file(mapped))
        elif mapped.size() >= len(_END):
            with _places.open_input(self.path) as file:
                file.seek(-len(_END), os.SEEK_END)
                if file.read() != _END:
                    raise CorruptionError(f"{self.path} is truncated: it has no mark of its end")

    def _check_is_all(self, end: int, size: int) -> None:
        """Readers stop at the first end, or begin at the last one."""
        if end != size:
            raise CorruptionError(
                f"{self.path} has {size - end} bytes more than its batches need, as several files "
                "that were joined have: give each on its own"
            )

    def _mapped(self) -> Any:  # noqa: ANN401
        pa = needed("pyarrow", self.what)
        stored = _places.for_library(self.path)
        is_local = isinstance(stored, str)
        return pa.memory_map(stored) if is_local else pa.PythonFile(stored, mode="r")

    def _opened(self, mapped: Any) -> Any:  # noqa: ANN401
        ipc = needed("pyarrow.ipc", self.what)
        is_file = self._head == _FILE
        return ipc.open_file(mapped) if is_file else ipc.open_stream(mapped)

    def _batches(self, reader: Any) -> Iterator[Any]:  # noqa: ANN401
        if hasattr(reader, "num_record_batches"):
            return (reader.get_batch(i) for i in range(reader.num_record_batches))
        return iter(reader)
