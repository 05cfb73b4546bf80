"""Addresses: their kinds, those of checkpoints, and what stays the same in another folder."""

import os

# The place of checkpoints: a folder of any name, or an address.
Target = str | bytes | os.PathLike[str] | os.PathLike[bytes]

SCHEME = "ffrecord://"
BUCKETS = "s3://"
WEB = ("http://", "https://")
STORES = (BUCKETS, *WEB)
# In a folder: names those of its files that are only at a store now (ffrecord._store.eviction).
EVICTED = "EVICTED"
REPLICATED = "buddies:"  # In front of places that are one target together, separated by |.


def target_from_root(target: Target) -> str:
    """A target of checkpoints with absolute paths: a folder's, alone or in a replicated target."""
    name = os.fsdecode(target)
    if name.startswith(REPLICATED):
        places = name.removeprefix(REPLICATED).split("|")
        return REPLICATED + "|".join(map(target_from_root, places))
    if "://" in name:
        return address_from_root(name)
    # An empty one is refused where it is opened.
    return os.path.join(os.getcwd(), name) if name and not os.path.isabs(name) else name


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
