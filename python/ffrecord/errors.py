"""The exceptions of the library for which Python has none.

Other errors raise Python's own: `ValueError` for a wrong argument, `IndexError` for an index out of
range, `FileNotFoundError`, `PermissionError`, and `OSError` with `errno` when the system fails.
"""


class CorruptionError(RuntimeError):
    """Stored bytes fail a check; the message names the file, the record and the finding."""


class UnavailableError(ConnectionError):
    """The daemon is gone, busy or was never there; the message names its address."""


class DeadlineExceeded(TimeoutError):
    """The time limit has passed; the operation may still take effect."""


class ConflictError(FileExistsError):
    """The name is taken; nothing was replaced, because the call did not ask for that."""


class RangeError(RuntimeError, IndexError):
    """An index is out of range, for code that expects HFAiLab/ffrecord's RuntimeError."""


class CountError(RuntimeError, ValueError):
    """More or fewer records than were declared."""


class ClosedError(RuntimeError, ValueError):
    """The reader or writer was closed."""


class MissingError(AssertionError, FileNotFoundError):
    """A file or an entry does not exist, for code that expects an AssertionError."""


class BadArgumentError(AssertionError, ValueError):
    """An invalid argument, for code that expects an AssertionError."""


class PathTypeError(AssertionError, TypeError):
    """An argument that must be a path is not one, for code that expects an AssertionError."""


class NotPackedError(ValueError):
    """The file is not a packed folder."""


class TrailerError(CorruptionError, NotPackedError):
    """The table of contents of a packed folder is invalid."""
