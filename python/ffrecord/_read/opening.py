"""Options of a reader, and the checks before files are opened at the first use."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ffrecord import _ffrecord
from ffrecord._base.addresses import SCHEME
from ffrecord._read.locations import absolute, expand, is_malformed, look
from ffrecord.errors import CorruptionError

# So many of the named local files are looked into; the others are looked up.
_LOOKED_INTO = 8
# For a daemon to answer whether it has what is named.
_LOOK_UP_MAX_S = 2.0
_TIMEOUT_MAX_S = 86_400.0
_CACHE_SIZE_MIN = 64 << 20
CACHE_SIZE = 64 << 30


@dataclass(frozen=True)
class ReadOptions:
    """Options of a reader, beside the locations: the arguments of `Reader`, which explains them.

    Raises:
        ValueError: one of them is out of range.
    """

    check_data: bool = True
    salvage: bool = False
    direct: bool = False
    timeout_s: float = 30.0
    max_corrupt: float = 0.001
    cache: str | os.PathLike[str] | None = None
    cache_size: int = CACHE_SIZE
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= _TIMEOUT_MAX_S:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be above 0, at most a day")
        if not _CACHE_SIZE_MIN <= self.cache_size < 1 << 63:
            raise ValueError(f"cache_size is {self.cache_size}; it must be at least 64 MiB")
        if self.cache is not None:
            if not os.fspath(self.cache):
                raise ValueError("cache is empty; it must name a folder")
            object.__setattr__(self, "cache", absolute(os.fspath(self.cache)))
        if self.storage_options is not None:
            object.__setattr__(self, "storage_options", dict(self.storage_options))

    def as_arguments(self) -> dict[str, Any]:
        """The same as arguments of `Reader`; those of a cache or of fsspec only if there is one."""
        names = ["check_data", "salvage", "direct", "timeout_s", "max_corrupt"]
        names += [] if self.cache is None else ["cache", "cache_size"]
        names += [] if self.storage_options is None else ["storage_options"]
        return {name: getattr(self, name) for name in names}

    def bound(self, *, assume_running: bool = False) -> _ffrecord.OpenOptions:
        """The same for the library."""
        return _ffrecord.OpenOptions(
            check_data=self.check_data,
            salvage=self.salvage,
            direct=self.direct,
            timeout_s=self.timeout_s,
            assume_running=assume_running,
            cache=os.fsencode(self.cache or ""),
            cache_size=self.cache_size,
        )


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
