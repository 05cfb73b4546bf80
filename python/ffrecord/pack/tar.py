"""A tar, plain or compressed; WebDataset's groups give labels."""

import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, groupby
from typing import BinaryIO, NamedTuple

from ffrecord.errors import CorruptionError
from ffrecord.pack.ahead import ahead
from ffrecord.pack.source import Progressed, check_text

_BLOCK_BYTES = 512


class _Member(NamedTuple):
    name: str
    content: bytes
    position_bytes: int


class TarSource:
    """Name and payload of each file; with a label if the first file comes with a `.cls`.

    Files of one group (WebDataset: names equal up to the first dot) stand together; the number in
    `key.cls` is the label of the group's other files, and every group must then have one.
    """

    def __init__(self, path: str) -> None:
        """Look at the first group, for it decides about labels."""
        self.classes: tuple[str, ...] = ()
        self.skipped: Counter[str] = Counter()
        self.size_bytes = os.stat(path).st_size
        self._path = path
        self._groups = self._read_groups()
        first = next(self._groups, None)
        if first is None:
            raise ValueError(f"{path} has no files in it: there is nothing to pack")
        self._groups = chain([first], self._groups)
        self._labelled = any(_is_label(member) for member in first)
        label = {"label": "i64"} if self._labelled else {}
        self.schema: Mapping[str, str] = {**label, "name": "utf8", "payload": "bytes"}

    def samples(self) -> Iterator[Progressed]:
        """Yield the files in the tar's order."""
        yield from ahead(self._samples())

    def _samples(self) -> Iterator[Progressed]:
        for group in self._groups:
            label = self._label(group) if self._labelled else {}
            for member in group:
                if not (self._labelled and _is_label(member)):
                    sample = {**label, "name": member.name, "payload": member.content}
                    yield sample, member.position_bytes

    def _label(self, group: list[_Member]) -> dict[str, int]:
        labels = [member for member in group if _is_label(member)]
        if len(labels) != 1:
            raise ValueError(
                f"{self._path}: {group[0].name} has {len(labels)} labels (.cls), its first file "
                "has one; every group needs one"
            )
        try:
            return {"label": int(labels[0].content)}
        except ValueError:
            shown = labels[0].content[:40]
            raise ValueError(f"{self._path}: {labels[0].name} is {shown!r}, no number") from None

    def _read_groups(self) -> Iterator[list[_Member]]:
        for _, members in groupby(self._read_members(), key=lambda member: _key(member.name)):
            yield list(members)

    def _read_members(self) -> Iterator[_Member]:
        with open(self._path, "rb") as raw:
            try:
                with tarfile.open(fileobj=raw) as tar:
                    for info in tar:
                        if (content := self._content(tar, info)) is not None:
                            name = check_text(info.name, self._path)
                            yield _Member(name, content, raw.tell())
                        # Else it remembers them all.
                        tar.members = []  # type: ignore[attr-defined]
                    self._check_end(tar)
            except (tarfile.TarError, EOFError) as error:
                raise CorruptionError(f"{self._path} is damaged or cut short: {error}") from error

    def _content(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes | None:
        if info.isdir():
            return None
        if not info.isfile():
            self.skipped["links" if info.issym() or info.islnk() else "special files"] += 1
            return None
        file = tar.extractfile(info)
        assert file is not None
        content = file.read()
        if len(content) != info.size:
            raise CorruptionError(
                f"{self._path} is cut short: {info.name} has {len(content)} of {info.size} bytes"
            )
        return content

    def _check_end(self, tar: tarfile.TarFile) -> None:
        """Tarfile takes a cut between or inside headers for the end."""
        file: BinaryIO = tar.fileobj  # type: ignore[assignment]
        file.seek(tar.offset)
        if file.read(_BLOCK_BYTES) != bytes(_BLOCK_BYTES):
            raise CorruptionError(f"{self._path} is cut short: the end of the tar is missing")


def _key(name: str) -> str:
    folder, _, base = name.rpartition("/")
    return f"{folder}/{base.split('.', 1)[0]}"


def _is_label(member: _Member) -> bool:
    return member.name.endswith(".cls")
