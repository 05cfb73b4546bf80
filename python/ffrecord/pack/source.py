"""What every source of samples offers, and how one is recognised."""

import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

# A sample, and how many bytes of the source are behind it.
Progressed = tuple[Mapping[str, Any], int]


class Source(Protocol):
    """Samples to pack. Single use: `samples` reads the source through, once."""

    schema: Mapping[str, str]
    size_bytes: int
    """Of all that will be read; for progress."""
    classes: tuple[str, ...]
    """Names of the labels 0, 1, ...; empty if the source does not name them."""
    skipped: Counter[str]
    """What was left out, by reason; complete after the last sample."""

    def samples(self) -> Iterator[Progressed]:
        """Yield every sample."""


def open_source(
    path: str | os.PathLike[str],
    *,
    follow_links: bool = False,
    include: tuple[str, ...] = (),
    label_field: str | None = None,
) -> Source:
    """Recognise a source by what it is: a folder of classes, a tar, or JSON lines by its name.

    Args:
        path: of the source.
        follow_links: pack what symbolic links in a folder point at; else they are skipped.
        include: of a folder, only files whose names match one of these patterns.
        label_field: of JSON lines, the field that holds an integer label.

    Raises:
        FileNotFoundError: there is nothing of that name.
        ValueError: it is no known source, or has nothing to pack.
    """
    from ffrecord.pack.folder import FolderSource
    from ffrecord.pack.jsonl import JsonLinesSource, is_json_lines
    from ffrecord.pack.tar import TarSource

    name = os.fspath(path)
    if os.path.isdir(name):
        _refuse(label_field is not None, name, "a folder", "--label-field is for JSON lines")
        return FolderSource(name, follow_links=follow_links, include=include)
    _refuse(follow_links or bool(include), name, "no folder", "links and patterns are of folders")
    if is_json_lines(name):
        return JsonLinesSource(name, label_field=label_field)
    _refuse(label_field is not None, name, "not *.jsonl", "--label-field is for JSON lines")
    if os.stat(name).st_size == 0:
        raise ValueError(f"{name} is empty: there is nothing to pack")
    if tarfile.is_tarfile(name):
        return TarSource(name)
    raise ValueError(
        f"{name} is no source: give a folder with a subfolder for each class, a tar "
        "(plain, gz, bz2, xz), or *.jsonl (plain or .gz)"
    )


def check_text(name: str, where: str) -> str:
    """The name, if it can be stored as text.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where}: the name {name!r} is not UTF-8; rename it") from None
    return name


def _refuse(wrong: bool, name: str, what: str, why: str) -> None:
    if wrong:
        raise ValueError(f"{name} is {what}: {why}")
