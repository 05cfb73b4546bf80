"""The meaning of failures of fsspec's file systems: which error, and whether it may pass."""

import errno
import re
from collections.abc import Mapping
from typing import Literal

from ffrecord import errors

Kind = Literal["invalid", "not_found", "unavailable", "deadline", "conflict", "denied"]
Retry = Literal["never", "later", "throttled"]

_EXCEPTIONS: Mapping[Kind, type[Exception]] = {
    "invalid": ValueError,
    "not_found": FileNotFoundError,
    "unavailable": errors.UnavailableError,
    "deadline": errors.DeadlineExceeded,
    "conflict": errors.ConflictError,
    "denied": PermissionError,
}
_NUMBERS: Mapping[Kind, int] = {
    "not_found": errno.ENOENT,
    "denied": errno.EACCES,
    "conflict": errno.EEXIST,
}
# Where clients of stores keep the status of an HTTP answer.
_STATUS_NAMES = ("status", "status_code", "code")
_PASSING_STATUSES = (408, 425, 500, 502, 504)
_THROTTLING_STATUSES = (429, 503)
# Errors that another try does not change.
_LASTING = (TypeError, ValueError, LookupError, AttributeError, ImportError, NotImplementedError)
_TEXT_MAX = 500


def meaning(error: BaseException) -> tuple[Kind, Retry]:
    """The kind of an error of a file system, and whether to try again.

    File systems raise whatever their client raises. The class of the exception counts first, then
    its `errno`, then the status of an HTTP answer; anything else may pass.
    """
    if isinstance(error, errors.ConflictError):  # Raised by us.
        return "conflict", "never"
    status = _http_status(error)
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, FileNotFoundError | NotADirectoryError) or status in (404, 410):
        return "not_found", "never"
    if isinstance(error, PermissionError) or status in (401, 403):
        return "denied", "never"
    if status in _THROTTLING_STATUSES or number == errno.EBUSY:  # So s3fs names "slow down".
        return "unavailable", "throttled"
    if status is not None and status not in _PASSING_STATUSES:
        return "unavailable", "never"
    if isinstance(error, TimeoutError):
        return "deadline", "later"
    return "unavailable", "never" if isinstance(error, _LASTING) else "later"


def exception(kind: Kind, message: str) -> Exception:
    """The exception of the library for an error of that kind."""
    number = _NUMBERS.get(kind)
    arguments = (message,) if number is None else (number, message)
    return _EXCEPTIONS[kind](*arguments)


def text_of(error: BaseException) -> str:
    """The text of an error in one line, with its class and without secrets.

    Raises nothing: the caller that waits for the error must get one, whatever a client calls its
    text.
    """
    try:
        text = str(error)
    except Exception:
        text = ""
    text = text.encode(errors="backslashreplace").decode()
    text = without_secrets(" ".join(text.split()))[:_TEXT_MAX]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def without_secrets(text: str) -> str:
    """A text with addresses, without passwords and the queries of signed addresses."""
    text = re.sub(r"://[^/\s]*@", "://", text)  # A password may have an @, too.
    return re.sub(r"(https?://[^\s?'\"]*)\?[^\s'\"]*", r"\1?...", text)


def _http_status(error: BaseException) -> int | None:
    for holder in (error, _attribute(error, "response")):
        for name in _STATUS_NAMES:
            value = _attribute(holder, name)
            if isinstance(value, int) and 400 <= value < 600:
                return value
    return None


def _attribute(holder: object, name: str) -> object:
    """The attribute; None if there is none, or if what computes it fails."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None
