"""Addresses: their kinds, those of checkpoints, and what stays the same in another folder."""

import os
import re

# The place of checkpoints: a folder of any name, or an address.
Target = str | bytes | os.PathLike[str] | os.PathLike[bytes]

SCHEME = "ffrecord://"
BUCKETS = "s3://"
WEB = ("http://", "https://")
STORES = (BUCKETS, *WEB)
# In a folder: names those of its files that are only at a store now (ffrecord._store.eviction).
EVICTED = "EVICTED"
REPLICATED = "buddies:"  # In front of places that are one target together, separated by |.
STAGED = "stage:"  # In front of places that a save goes to one after the other, separated by >.
SEVERAL = (REPLICATED, STAGED)
# Below a dataset's name: the list of its versions, and at a daemon their data.
CATALOGUE, VERSIONS = ".catalogue", ".versions"
# The name of a version or a tag: as a segment of a daemon's name, and as the name of a folder.
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def target_from_root(target: Target) -> str:
    """A target of checkpoints with absolute paths: a folder's, alone or one of several places."""
    name = os.fsdecode(target)
    if name.startswith(SEVERAL):
        scheme, mark, places = split_places(name)
        return scheme + mark.join(map(target_from_root, places))
    if "://" in name:
        return address_from_root(name)
    # An empty one is refused where it is opened.
    return os.path.join(os.getcwd(), name) if name and not os.path.isabs(name) else name


def split_places(target: str) -> tuple[str, str, list[str]]:
    """An address of several places: what is in front of them, between them, and each of them."""
    scheme, mark = (STAGED, ">") if target.startswith(STAGED) else (REPLICATED, "|")
    return scheme, mark, target.removeprefix(scheme).split(mark)


def is_folder(target: str) -> bool:
    """Whether a target is a folder, alone."""
    return "://" not in target and not target.startswith(SEVERAL)


def address_from_root(address: str) -> str:
    """An address whose options name files by absolute paths: `?token_file=` and `&tls=`."""
    location, mark, options = address.partition("?")
    if not address.startswith(SCHEME) or not options:
        return address
    named = [option.partition("=") for option in options.split("&")]
    parts = [
        f"{name}={os.path.join(os.getcwd(), value)}"
        if name in ("token_file", "tls") and value
        else f"{name}{equals}{value}"
        for name, equals, value in named
    ]
    return f"{location}{mark}{'&'.join(parts)}"


def below(target: str, name: str) -> str:
    """The address of `name` below a target, whatever kind of address that is.

    A slash at the end of a folder or bucket makes no difference.
    """
    if target.startswith(SEVERAL):
        scheme, mark, places = split_places(target)
        return scheme + mark.join(below(place, name) for place in places)
    if target.startswith(SCHEME):
        address, mark, options = target.partition("?")
        return f"{address}/{name}{mark}{options}"
    return f"{target.rstrip('/')}/{name}"


def with_version(place: str, version: str) -> str:
    """The address of a version of the dataset at `place`."""
    address, mark, options = _parts(place)
    return f"{address}@{version}{mark}{options}"


def split_version(address: str) -> tuple[str, str | None]:
    """The place of a dataset and the version, or tag, of an address; None without an `@`.

    Only the last segment has a version, so users and hosts keep their `@`; that of a store or
    folder may have an `@` of its own in a segment before it.

    Raises:
        ValueError: what follows the `@` cannot be a version.
    """
    location, mark, options = _parts(address)
    head, slash, last = location.rpartition("/")
    name, sign, version = last.rpartition("@")
    if not sign or (address.startswith(SCHEME) and not _has_name(location)):
        return address, None
    if not name or not VERSION.fullmatch(version):
        raise ValueError(
            f"{address!r}: {last!r} is not NAME@VERSION; a version is 1 to 64 characters of A-Z a-z"
            " 0-9 . _ -, and begins with a letter or digit"
        )
    return f"{head}{slash}{name}{mark}{options}", version


def _parts(address: str) -> tuple[str, str, str]:
    """An address, and its options with their mark; only daemons' addresses have options."""
    return address.partition("?") if address.startswith(SCHEME) else (address, "", "")


def _has_name(location: str) -> bool:
    """Whether the address of a daemon has more than hosts in it."""
    return "/" in location.removeprefix(SCHEME)
