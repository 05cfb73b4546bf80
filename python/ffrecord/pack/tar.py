"""A tar, plain or compressed; WebDataset's groups give labels."""

import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, groupby
from typing import Any, BinaryIO, NamedTuple

from ffrecord.errors import CorruptionError
from ffrecord.pack.ahead import ahead
from ffrecord.pack.source import Progressed, SourceOptions, check_text, picked

_BLOCK_BYTES = 512
# Columns that are no extensions.
_OURS = ("label", "name")
# Extensions of what is UTF-8 by definition, or by WebDataset's custom.
_TEXTS = ("txt", "text", "json")


class _Member(NamedTuple):
    name: str
    content: bytes
    position_bytes: int


class TarSource:
    """A record for each file, or for each group of files that WebDataset knows as a sample.

    The files of a group stand together, their names equal up to the first dot. If the first group
    has several files beside its label, each group is a record: its `name`, and a column for each
    extension, utf8 for what is text, else bytes. Else each file is one: its `name` and `payload`.
    The number in `key.cls` is the label of its group; all groups have one, or none has.
    """

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Look at the first group, which decides what a record is."""
        options.allow(path, "a tar", "columns")
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
        fields = [_extension(member.name) for member in first if not _is_label(member)]
        self._grouped = len(fields) > 1
        columns = {field: _type_of(field) for field in fields}
        schema = {
            **({"label": "i64"} if self._labelled else {}),
            "name": "utf8",
            **(columns if self._grouped else {"payload": "bytes"}),
        }
        if self._grouped and any(field in _OURS for field in fields):
            raise ValueError(f"{path}: files .{', .'.join(fields)} of a sample: rename one")
        self._picks = bool(options.columns)
        self.schema: Mapping[str, str] = picked(schema, options.columns, path)
        self.key: str | None = "name" if "name" in self.schema else None

    def samples(self) -> Iterator[Progressed]:
        """Yield the files, or the groups, in the tar's order."""
        for sample, position_bytes in ahead(self._samples()):
            yield {name: sample[name] for name in self.schema}, position_bytes

    def _samples(self) -> Iterator[tuple[dict[str, Any], int]]:
        for group in self._groups:
            label = self._label(group) if self._labelled else {}
            members = [each for each in group if not (self._labelled and _is_label(each))]
            if self._grouped:
                yield {**label, **self._fields(group, members)}, group[-1].position_bytes
                continue
            for member in members:
                sample = {**label, "name": member.name, "payload": member.content}
                yield sample, member.position_bytes

    def _fields(self, group: list[_Member], members: list[_Member]) -> dict[str, Any]:
        name = _key(group[0].name).lstrip("/")
        extensions = [_extension(member.name) for member in members]
        self._check_extensions(name, extensions)
        fields: dict[str, Any] = {"name": name}
        for extension, member in zip(extensions, members, strict=True):
            is_text = _type_of(extension) == "utf8"
            fields[extension] = _text(self._path, member) if is_text else member.content
        return fields

    def _check_extensions(self, name: str, extensions: list[str]) -> None:
        wanted = [column for column in self.schema if column not in _OURS]
        lacking = [column for column in wanted if column not in extensions]
        more = [] if self._picks else [each for each in extensions if each not in wanted]
        if lacking or more or len(set(extensions)) < len(extensions):
            raise ValueError(
                f"{self._path}: the sample {name} has the files .{', .'.join(extensions)}, the "
                f"first has .{', .'.join(wanted)}: name columns that all have with --column"
            )

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


def _text(path: str, member: _Member) -> str:
    try:
        return member.content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {member.name} is not UTF-8: {error}") from None


def _extension(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[2].lower()


def _type_of(extension: str) -> str:
    return "utf8" if extension.rpartition(".")[2] in _TEXTS else "bytes"


def _key(name: str) -> str:
    folder, _, base = name.rpartition("/")
    return f"{folder}/{base.split('.', 1)[0]}"


def _is_label(member: _Member) -> bool:
    return member.name.endswith(".cls")
