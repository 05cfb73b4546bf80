"""Names of files and folders to be written."""

import os
import re
from pathlib import Path

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def destination_path(name: str | os.PathLike[str], what: str = "the destination") -> Path:
    """The absolute path of a file or folder to be written: the process may go to another folder.

    Raises:
        ValueError: the name is empty, or is the address of a store or daemon.
    """
    text = os.fspath(name)
    if not text:
        raise ValueError(f"{what}'s name is empty: is a variable of the shell not set?")
    if _ADDRESS.match(text):
        raise ValueError(
            f"{text} is an address, and {what} must be a local name: write a local file, then "
            "upload it with 'ffrecord push' or 'ffrecord publish'"
        )
    path = Path(os.getcwd(), text)
    return path.resolve() if path.name in ("", "..") else path  # `.` has a name, too.
