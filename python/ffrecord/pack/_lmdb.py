"""LMDB databases: a record for each key and its value, both bytes."""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any
from weakref import WeakValueDictionary

from ffrecord._tables.formats import pyarrow
from ffrecord.pack import _places
from ffrecord.pack._row_table import RowTable
from ffrecord.pack._source import (
    WHOLE,
    Part,
    SourceOptions,
    check_not_pickled,
    needed,
    stamp_of_files,
)
from ffrecord.pack._table import ROWS_BYTES, ROWS_MAX

_FILE = "data.mdb"
# The first page has a head of 16 bytes, and then this.
_MAGIC, _MAGIC_AT = b"\xde\xc0\xef\xbe", 16
# Size of a database's description within the database.
_NAMED_BYTES = 48
_LOOK_ENTRIES = 1000


def is_lmdb(path: str) -> bool:
    """A folder with its file, or the file by its content."""
    file = os.path.join(path, _FILE) if _places.is_dir(path) else path
    if not _places.is_file(file):
        return False
    with _places.open_input(file) as opened:
        return opened.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC


class _Opened:
    """A database; lmdb opens each only once in a process."""

    def __init__(self, env: Any) -> None:  # noqa: ANN401 - lmdb has no types
        self.env = env

    def __del__(self) -> None:
        self.env.close()


_OPENED: WeakValueDictionary[tuple[str, str], _Opened] = WeakValueDictionary()


def _opened(lmdb: Any, path: str, file: str) -> _Opened:  # noqa: ANN401
    """The database as it is now, which another source may have opened."""
    place = _places.real(path), stamp_of_files([file])
    if (found := _OPENED.get(place)) is None:
        # Without locks: a folder that may only be read can be packed, too.
        is_folder = _places.is_dir(path)
        options = {"readonly": True, "lock": False, "subdir": is_folder, "readahead": False}
        _OPENED[place] = found = _Opened(lmdb.open(path, max_dbs=1, **options))
    return found


class LmdbSource(RowTable):
    """The columns key and value, in the order of the keys."""

    what = "LMDB database"
    meant = ("columns", "drop", "cast", "raw")

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Open the database; see `open_source` for arguments and errors."""
        self._at: tuple[int, bytes] | None = None
        super().__init__(path, options)
        if "key" in self.schema.arrow.names and not self._has_duplicates:
            self.key = "key"

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Key and value, as bytes."""
        _places.check_local(self.path, self.what)
        lmdb = needed("lmdb", "an LMDB database", "lmdb")
        is_folder = _places.is_dir(self.path)
        self.files = (os.path.join(self.path, _FILE) if is_folder else self.path,)
        self.size_bytes = _places.size_of(self.files[0])
        self.damage = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)
        try:
            self._opened = _opened(lmdb, self.path, self.files[0])
        except lmdb.Error as error:
            if isinstance(error, self.damage):
                raise
            raise ValueError(f"{self.path} cannot be opened by lmdb: {error}") from error
        self._env = self._opened.env
        pages = self._env.info()["last_pgno"] + 1
        if pages * self._env.stat()["psize"] > self.size_bytes:
            raise self.damaged(ValueError(f"it has {pages} pages, and the file ends before"))
        self.row_count = self._env.stat()["entries"]
        with self._env.begin() as txn:
            self._has_duplicates = bool(self._env.open_db(txn=txn).flags(txn)["dupsort"])
            self._check_names(lmdb, txn)
        pa = pyarrow()
        return pa.schema([pa.field(name, pa.binary(), nullable=False) for name in ("key", "value")])

    def read(self, names: list[str], begin: int, end: int) -> Any:  # noqa: ANN401 - pyarrow's
        """Not used: rows are read in the order of the keys."""
        raise NotImplementedError

    def tables(
        self, names: list[str], part: Part, skipped: Counter[str]
    ) -> Iterator[tuple[Any, int]]:
        """Yield so many values at a time as have some MiB."""
        end = self.row_count if part.end == WHOLE else part.end
        done, total = 0, max(end - part.begin, 1)
        keys: list[bytes] = []
        values: list[bytes] = []
        size_bytes = 0
        with self._env.begin() as txn, txn.cursor() as cursor:
            self._go_to(cursor, part.begin)
            for key, value in cursor.iternext() if end > part.begin else ():
                if not self.options.raw:
                    check_not_pickled(value, f"{self.path}: the value of {key!r}")
                keys.append(key)
                values.append(value)
                size_bytes += len(key) + len(value)
                done += 1
                is_last = done == total
                if is_last and part.end != WHOLE:
                    self._at = (end - 1, key)
                if is_last or size_bytes >= ROWS_BYTES or len(keys) == ROWS_MAX:
                    yield self._table(names, keys, values), part.size_bytes * done // total
                    keys, values, size_bytes = [], [], 0
                if is_last:
                    return
        if end > part.begin:
            raise self.damaged(ValueError(f"it has {done} entries, and says {total}"))

    def _table(self, names: list[str], keys: list[bytes], values: list[bytes]) -> Any:  # noqa: ANN401
        columns = {"key": keys, "value": values}
        wanted = pyarrow().schema([self.found.field(name) for name in names])
        return pyarrow().table([columns[name] for name in names], schema=wanted)

    def _go_to(self, cursor: Any, row: int) -> None:  # noqa: ANN401 - lmdb has no types
        """Let the cursor be at a row, from the row before it that was read last, if it was."""
        at = 0
        if self._at is not None and self._at[0] < row and not self._has_duplicates:
            at = self._at[0]
            cursor.set_key(self._at[1])
        else:
            cursor.first()
        for _ in range(row - at):
            if not cursor.next():
                raise self.damaged(ValueError("it has fewer entries than it says"))

    def _check_names(self, lmdb: Any, txn: Any) -> None:  # noqa: ANN401
        """Check that no entry is a database with a name of its own, which would seem a value."""
        for key, value in islice(txn.cursor(), 0 if self._has_duplicates else _LOOK_ENTRIES):
            if len(value) != _NAMED_BYTES:
                continue
            try:
                self._env.open_db(key, txn=txn, create=False)
            except lmdb.Error:  # It is a value.
                continue
            raise ValueError(
                f"{self.path} has databases with names, such as {key!r}, which are not packed: "
                "copy each to a database of its own"
            )
