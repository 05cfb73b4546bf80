"""Where the datasets with versions are: at a daemon, in a folder, in a bucket."""

import glob
import os
import re
from collections.abc import Iterator

from ffrecord import _ffrecord
from ffrecord._base.addresses import BUCKETS, CATALOGUE, SCHEME, SEVERAL

_STEP = f"/{CATALOGUE}/step-"
_STEP_NAME = re.compile(r"step-[0-9]+")


def places(root: str, timeout_s: float) -> list[str]:
    """The places of all datasets with versions at or below `root`, sorted.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: what is at `root` cannot be listed.
    """
    if root.startswith(SCHEME):
        return _at_daemon(root, timeout_s)
    if root.startswith(BUCKETS):
        return _in_bucket(root.rstrip("/"), timeout_s)
    if root.startswith(SEVERAL) or "://" in root:
        raise ValueError(f"{root} cannot be listed; give a daemon, a folder or a bucket")
    if not os.path.isdir(root):
        raise FileNotFoundError(f"{root}: there is no such folder")
    return sorted(_in_folder(root))


def _at_daemon(root: str, timeout_s: float) -> list[str]:
    location, mark, options = root.partition("?")
    hosts = location.removeprefix(SCHEME).partition("/")[0]
    found = {
        name.partition(_STEP)[0]
        for name, *_ in _ffrecord.list_published(root, timeout_s=timeout_s)
        if _STEP in name
    }
    return [f"{SCHEME}{hosts}/{name}{mark}{options}" for name in sorted(found)]


def _in_bucket(root: str, timeout_s: float) -> list[str]:
    found = set()
    literal = BUCKETS + glob.escape(root.removeprefix(BUCKETS))
    for pattern in (f"{literal}{_STEP}*", f"{literal}/**{_STEP}*"):
        try:
            stored = _ffrecord.match_stored_files(pattern, timeout_s=timeout_s)
        except FileNotFoundError:
            continue
        names = {file.name.partition(_STEP)[0] for file in stored}
        found |= {name for name in names if f"{name}/".startswith(f"{root}/")}
    return sorted(found)


def _in_folder(root: str) -> Iterator[str]:
    for folder, inner, _ in os.walk(root):
        if CATALOGUE in inner:
            yield folder
        # Steps of checkpoints hold no datasets.
        inner[:] = [name for name in inner if not name.startswith(".") and not _is_step(name)]


def _is_step(name: str) -> bool:
    return _STEP_NAME.fullmatch(name) is not None
