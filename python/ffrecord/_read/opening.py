"""Refuses what is not there when it is opened, although files are opened at the first use."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from ffrecord import _ffrecord
from ffrecord._base.addresses import SCHEME
from ffrecord._read.locations import expand, is_malformed, look
from ffrecord.errors import CorruptionError

# Of local files that are named, how many are looked into; the others are looked up.
_LOOKED_INTO = 8
# For a daemon to answer whether it has what is named.
_LOOK_UP_MAX_S = 2.0


def refuse_missing(
    where: Sequence[str],
    *,
    is_local: bool,
    timeout_s: float,
    open_files: Callable[[list[bytes], float], _ffrecord.RecordReader],
    open_all: Callable[[], object],
) -> None:
    """Raise what the first read would raise if what is named is not there; keep nothing open.

    Damage is left to the reads, which name the records, and so is a daemon or store that cannot be
    reached: it may be there by then.

    Args:
        where: the locations, all of one kind.
        is_local: whether they are files.
        timeout_s: the reader's time limit.
        open_files: opens files or datasets within a time limit.
        open_all: opens what is named, as the first read does.

    Raises:
        FileNotFoundError: there is no such file or dataset.
        ValueError: a file is no record file, or an address is malformed.
        OSError: a local file cannot be read.
    """
    if is_local:
        found, missing = look(where)
        if files := missing[:1] or found[:_LOOKED_INTO]:
            with suppress(CorruptionError):
                open_files(files, timeout_s)
    elif where[0].startswith(SCHEME):
        try:
            open_files(expand(where), min(_LOOK_UP_MAX_S, timeout_s))
        except FileNotFoundError:
            raise
        except (OSError, CorruptionError):
            pass
    elif any(map(is_malformed, where)):
        open_all()
