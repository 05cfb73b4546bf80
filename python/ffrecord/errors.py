"""The errors of the library that Python has no word for.

Others come as what they are: `ValueError` for a wrong argument, `IndexError` for an index out of
range, `FileNotFoundError`, `PermissionError`, and `OSError` with `errno` when the system refuses.
"""


class CorruptionError(RuntimeError):
    """Stored bytes fail a check; the message names the file, the record and what was found."""


class UnavailableError(ConnectionError):
    """The daemon is gone, busy or not there; the message says where it was looked for."""


class DeadlineExceeded(TimeoutError):
    """Time is up; the operation may still take effect."""


class ConflictError(FileExistsError):
    """The name is taken: nothing was replaced, for that was not asked."""


class RangeError(RuntimeError, IndexError):
    """An index is out of range, for code that expects HFAiLab/ffrecord's RuntimeError."""


class CountError(RuntimeError, ValueError):
    """More or fewer records than were declared."""


class ClosedError(RuntimeError, ValueError):
    """The reader or writer was closed."""


class MissingError(AssertionError, FileNotFoundError):
    """A file or an entry is not there, for code that expects an AssertionError."""


class BadArgumentError(AssertionError, ValueError):
    """An argument that cannot be used, for code that expects an AssertionError."""


class PathTypeError(AssertionError, TypeError):
    """What should be a path is none, for code that expects an AssertionError."""


class NotPackedError(ValueError):
    """The file is no packed folder."""


class TrailerError(CorruptionError, NotPackedError):
    """The table of contents of a packed folder is not what it may be."""
