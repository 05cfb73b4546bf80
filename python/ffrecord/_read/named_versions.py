"""Versions of datasets at daemons: from `ffrecord://host/name@version` to what is opened.

Which versions there are is known to a room above this one, which says so at its import.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ffrecord import _ffrecord
from ffrecord._base.addresses import CATALOGUE, SCHEME, below, split_version
from ffrecord.errors import CorruptionError


@dataclass(frozen=True)
class Located:
    """A version of a dataset.

    Attributes:
        address: that of the version itself; always the same data.
        data: that of its files, as the daemon knows it.
        label: name and version.
        fingerprint: of its records.
    """

    address: str
    data: str
    label: str
    fingerprint: str


class Catalogue(Protocol):
    """The part that opening needs of the room that knows versions."""

    def locate(self, place: str, version: str | None, timeout_s: float) -> Located:
        """A version or tag of the dataset at `place`; None: the newest."""


_find_catalogue: Callable[[], Catalogue]


def locate_versions_with(find: Callable[[], Catalogue]) -> None:
    """Set who knows versions; `find` is called when an address may name one."""
    global _find_catalogue
    _find_catalogue = find


def asked_version(address: str) -> str | None:
    """The version, or tag, that an address of a daemon names.

    Raises:
        ValueError: what follows its `@` cannot be one.
    """
    return split_version(address)[1] if address.startswith(SCHEME) else None


def locate(address: str, timeout_s: float) -> Located:
    """The version that an address of a daemon stands for; without one, the newest.

    Raises:
        FileNotFoundError: there is no such version.
    """
    place, version = split_version(address)
    return _find_catalogue().locate(place, version, timeout_s)


def newest(address: str, timeout_s: float) -> Located | None:
    """The newest version of a dataset; None if it has no versions, or this client may not look."""
    try:
        has_some = bool(_ffrecord.list_steps(below(address, CATALOGUE), timeout_s))
    except (PermissionError, ValueError):  # The name may be too long for that of a list below it.
        return None
    return locate(address, timeout_s) if has_some else None


def check_is(located: Located, fingerprint: str) -> None:
    """Raise CorruptionError if what was opened is not the version."""
    if fingerprint != located.fingerprint:
        raise CorruptionError(
            f"{located.address}: {located.data} has the fingerprint {fingerprint}, and the version"
            f" was published with {located.fingerprint}: its data was replaced. Publish the files "
            "as another version"
        )


def gone(located: Located) -> FileNotFoundError:
    """The error for a version whose data is not there."""
    return FileNotFoundError(
        errno.ENOENT, f"{located.address}: its data, {located.data}, was removed"
    )
