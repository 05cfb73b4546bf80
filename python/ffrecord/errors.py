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
