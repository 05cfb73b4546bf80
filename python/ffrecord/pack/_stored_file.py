"""A file at an object store or a server, read as a local one: in any order, ahead of its reader."""

import errno
import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ffrecord._ffrecord import StoredFile
from ffrecord.errors import DeadlineExceeded, UnavailableError

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

# Bytes to read at a place that nothing before led to. The bytes behind it are read in pieces that
# double.
_FIRST_BYTES, _PIECE_BYTES_MAX = 64 << 10, 8 << 20
_BUFFER_BYTES = 64 << 10
# So many bytes of an array's rows are kept.
_ROWS_BYTES = 4 << 20


class _Piece(NamedTuple):
    begin: int
    data: bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.data)


class StoredInput(io.RawIOBase):
    """The bytes of a stored file: all of the version that was found, or an error.

    A piece is kept, and the next one is fetched meanwhile if the last was read to its end. So a
    file takes at most three pieces of memory, however large it is.
    """

    failure: OSError | None = None
    """The store's last answer, for libraries that say something else of it."""

    def __init__(self, file: StoredFile) -> None:
        """Read nothing yet."""
        self._file = file
        self._reader = file.open()
        self._position = 0
        self._piece = _Piece(0, b"")
        self._next: tuple[int, int, Future[bytes]] | None = None
        self._step = _FIRST_BYTES
        self._pool: ThreadPoolExecutor | None = None

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def size(self) -> int:
        """All of it, in bytes."""
        return self._file.size_bytes

    def tell(self) -> int:
        """Where the next byte comes from."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere; nothing is read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size_bytes}
        if base[whence] + offset < 0:
            raise OSError(errno.EINVAL, f"{self._file.name}: nothing is before the first byte")
        self._position = base[whence] + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        """As many bytes as are asked for, or as there are."""
        left = max(self._file.size_bytes - self._position, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        pieces = []
        while wanted > 0:
            data = self._some(wanted)
            pieces.append(data)
            self._position += len(data)
            wanted -= len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def readall(self) -> bytes:
        """The rest."""
        return self.read()

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        """Fill a buffer, as far as there are bytes."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Stop what is read ahead."""
        if not self.closed:
            self._reader.stop()
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
            self._piece, self._next = _Piece(0, b""), None
        super().close()

    def _some(self, wanted: int) -> bytes:
        """Bytes from the position on, at least one and at most so many."""
        at = self._position
        if not self._piece.begin <= at < self._piece.end:
            self._piece = self._fetched(at, wanted)
        begin = at - self._piece.begin
        return self._piece.data[begin : begin + wanted]

    def _fetched(self, at: int, wanted: int) -> _Piece:
        """The piece with the byte at this place; the one behind it begins to come, perhaps."""
        ahead, self._next = self._next, None
        if ahead is not None and ahead[0] <= at < ahead[0] + ahead[1]:
            piece = _Piece(ahead[0], self._said(ahead[2].result))
        else:
            is_next = at == self._piece.end and at > 0
            self._step = min(2 * self._step, _PIECE_BYTES_MAX) if is_next else _FIRST_BYTES
            size = min(max(wanted, self._step), _PIECE_BYTES_MAX)
            piece = _Piece(at, self._said(lambda: self._reader.read(at, size)))
            if not is_next:
                return piece
        self._step = min(2 * self._step, _PIECE_BYTES_MAX)
        size = min(self._step, self._file.size_bytes - piece.end)
        if size > 0:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor  # Slow to import.

                self._pool = ThreadPoolExecutor(1, "ffrecord-pack-ahead")
            self._next = piece.end, size, self._pool.submit(self._reader.read, piece.end, size)
        return piece

    def _said(self, read: Any) -> bytes:  # noqa: ANN401 - a function without arguments
        try:
            data: bytes = read()
        except (UnavailableError, DeadlineExceeded) as error:
            # With a number, as errors of the system have: it is no damage.
            number = errno.ETIMEDOUT if isinstance(error, DeadlineExceeded) else errno.EHOSTDOWN
            self.failure = type(error)(number, str(error))
        except ValueError as error:  # It knows no ranges, for example.
            self.failure = OSError(errno.EOPNOTSUPP, str(error))
        except OSError as error:
            self.failure = error
        else:
            return data
        raise self.failure


def buffered(file: StoredFile) -> io.BufferedReader:
    """A stored file as `open(path, "rb")` gives a local one."""
    return io.BufferedReader(StoredInput(file), _BUFFER_BYTES)


class StoredArray:
    """Rows of an array in a stored file, of which only those that are asked for are read."""

    def __init__(
        self, file: StoredFile, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int
    ) -> None:
        """Take what the file says of it."""
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self.offset = offset
        self._input = StoredInput(file)
        self._rows: tuple[int, npt.NDArray[Any]] = (0, np.zeros((0, *shape[1:]), self.dtype))

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """All of it."""
        return int(np.prod(self.shape, dtype=object)) * self.itemsize

    def __len__(self) -> int:
        """Rows."""
        return self.shape[0]

    def __getitem__(self, where: int | slice) -> Any:  # noqa: ANN401 - a row, or rows
        """A row, or rows that lie one behind the other."""
        if isinstance(where, slice):
            begin, end, _ = where.indices(len(self))
            return self._read(begin, max(end, begin))
        first, rows = self._rows
        if not first <= where < first + len(rows):
            count = max(1, _ROWS_BYTES * len(self) // max(self.nbytes, 1))
            first, rows = self._rows = where, self._read(where, min(where + count, len(self)))
        return rows[where - first]

    def _read(self, begin: int, end: int) -> npt.NDArray[Any]:
        row_bytes = self.nbytes // max(len(self), 1)
        self._input.seek(self.offset + begin * row_bytes)
        data = self._input.read((end - begin) * row_bytes)
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])
