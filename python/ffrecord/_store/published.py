"""Datasets that a daemon serves: publish, list, remove. Read them with `ffrecord.open`."""

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ffrecord import _ffrecord
from ffrecord._base.addresses import CATALOGUE, SCHEME, below, split_version
from ffrecord._read.locations import Where, expand, normalise
from ffrecord.errors import ConflictError, UnavailableError

_DURABILITY = r"replicas|origin|r[123]|ec:\d+\+\d+"


class HasVersionsError(ConflictError):
    """A name has, or had, versions: it is no dataset that could be replaced."""


@dataclass(frozen=True)
class Calls:
    """How files are sent to a place."""

    timeout_s: float
    dry_run: bool
    progress: Callable[[int, int], None] | None


@dataclass(frozen=True)
class Published:
    """One dataset of a daemon.

    `durability` is how a cluster stores its files, as `publish` takes it: "origin", "r1" to "r3",
    or an erasure code such as "ec:4+2". None: the daemon is not part of a cluster, has an earlier
    version, or has not fetched the list of files yet.
    """

    name: str
    size_bytes: int
    file_count: int
    durability: str | None = None


def publish(
    files: Where,
    address: str,
    *,
    replace: bool = False,
    durability: str = "replicas",
    copy_to: str | os.PathLike[str] | None = None,
    timeout_s: float = 30.0,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Publish sealed files as one dataset, which becomes visible all at once.

    Args:
        files: as for `ffrecord.open`, but local; checked before the upload.
        address: `ffrecord://host[:port]/name`.
        replace: replace a dataset of that name.
        durability: how a cluster stores the files. "replicas": as many replicas as its setting
            says; "r1", "r2" and "r3": 1, 2 or 3. "ec:4+2", or other numbers of data and parity
            extents: an erasure code; any 2 nodes may be lost, and the size grows by half.
            "origin": the nodes fetch and cache the files from where they are. `files` are then
            `s3://` objects, or in a folder that all nodes share, and the setting `origins` of
            the daemons lists that place.
        copy_to: for "origin": copy local files to this place first, `s3://bucket/prefix` or a
            folder, under their own names. Replaces no file there; files with the same bytes are
            used, so you can repeat a call that failed.
        timeout_s: for each call, retries included.
        dry_run: check the files and the address, and send nothing.
        progress: called with bytes done and bytes in all.

    Raises:
        ConflictError: the name exists and `replace` is False, or has versions, or `copy_to` has
            another file of the same name.
        CorruptionError: a file is damaged.
        UnavailableError: the daemon does not answer.
        DeadlineExceeded: it did not answer in time.
        PermissionError: the daemons may not fetch a file from its origin.
        OSError: a file cannot be read, or the daemon's disk is full.
        ValueError: the address or `durability` is malformed, or a file cannot have that class.
    """
    _refuse_version(address)
    if _has_versions(address, timeout_s):
        raise HasVersionsError(
            errno.EEXIST,
            f"{address} has versions, or had some; give the files one, with "
            "ffrecord.catalogue.publish or ffrecord publish --version",
        )
    calls = Calls(timeout_s, dry_run, progress)
    send(files, address, durability, calls, replace=replace, copy_to=copy_to)


def send(
    files: Where,
    address: str,
    durability: str,
    calls: Calls,
    *,
    replace: bool = False,
    copy_to: str | os.PathLike[str] | None = None,
) -> None:
    """As `publish`, whether the name has versions or not."""
    if not re.fullmatch(_DURABILITY, durability):
        raise ValueError(
            'durability is "replicas", "r1", "r2", "r3", an erasure code such as "ec:4+2", or '
            f'"origin", not {durability!r}'
        )
    if copy_to is not None and durability != "origin":
        raise ValueError('copy_to is for durability="origin"')
    paths = expand(normalise(files))
    _ffrecord.publish(
        paths,
        address,
        replace=replace,
        from_origin=durability == "origin",
        copy_to=None if copy_to is None else os.fspath(copy_to),
        durability="" if durability in ("replicas", "origin") else durability,
        timeout_s=calls.timeout_s,
        progress=calls.progress,
        dry_run=calls.dry_run,
    )


def list_published(
    address: str = "ffrecord://localhost/", *, timeout_s: float = 30.0
) -> list[Published]:
    """List the datasets of the daemon at `address`, by name; a name in it is a prefix."""
    found = _ffrecord.list_published(address, timeout_s=timeout_s)
    return [Published(*dataset) for dataset in found]


def remove_published(address: str, *, timeout_s: float = 30.0) -> None:
    """Remove the dataset `address`; batches that clients have read stay valid.

    Raises:
        FileNotFoundError: there is no dataset of that name.
    """
    _refuse_version(address)
    try:
        _ffrecord.remove_published(address, timeout_s=timeout_s)
    except FileNotFoundError:
        if _has_versions(address, timeout_s):
            raise only_versions(address) from None
        raise


def only_versions(address: str) -> FileNotFoundError:
    """The error for removing a dataset that has, or had, versions."""
    return FileNotFoundError(
        errno.ENOENT,
        f"{address} has versions, or had some; name the version to remove, as NAME@VERSION. The "
        "list of their names stays, so that none is used again",
    )


def is_there(address: str, timeout_s: float) -> bool:
    """Whether there is a dataset of that name, without its versions."""
    try:
        _ffrecord.ServedFiles.open(address, timeout_s=timeout_s)
    except FileNotFoundError:
        return False
    return True


def remove_if_there(address: str, timeout_s: float) -> bool:
    """Remove a dataset; return whether it was there."""
    try:
        _ffrecord.remove_published(address, timeout_s=timeout_s)
    except FileNotFoundError:
        return False
    return True


def _has_versions(address: str, timeout_s: float) -> bool:
    """Whether the dataset has versions, as far as this client may look."""
    # The call that asks says what is malformed, and that no daemon answers; its arguments first.
    with suppress(PermissionError, UnavailableError, ValueError):
        return bool(_ffrecord.list_steps(below(address, CATALOGUE), timeout_s))
    return False


def _refuse_version(address: str) -> None:
    if address.startswith(SCHEME) and split_version(address)[1] is not None:
        raise ValueError(
            f"{address} names a version: publish and remove versions with ffrecord.catalogue"
        )
