"""A tar, plain or compressed; WebDataset's groups give labels."""

import re
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from typing import Any

from ffrecord._tables.arrow_schema import nulls_in
from ffrecord._tables.formats import pyarrow
from ffrecord._tables.nested import is_name, layout_of
from ffrecord._tables.schema import columns_of, parse
from ffrecord.pack import _places
from ffrecord.pack._ahead import ahead
from ffrecord.pack._cutting import Mark, is_plain, parts_between
from ffrecord.pack._source import (
    HIDDEN,
    WHOLE,
    Lacking,
    OneSample,
    Part,
    Progressed,
    Source,
    SourceOptions,
    is_label,
    picked,
)
from ffrecord.pack._tar_members import Member, TarMembers, headers_of, is_hidden, is_tar
from ffrecord.pack._tar_rows import TarRows

__all__ = ["TarSource", "is_tar"]

# The extension of labels; `.seg.cls` is another one.
_LABELS = "cls"
# Columns that are no extensions.
_OURS = ("label", "name")
# Extensions of what is UTF-8 by definition, or by WebDataset's custom.
_TEXTS = ("txt", "text", "json")
# The first part, which shows the kind of the records: so many groups, or bytes if that is less.
_LOOK_GROUPS, _LOOK_BYTES = 1000, 64 << 20
# A sample has a few files; a group of more is none, and all of it is held in memory.
_GROUP_FILES_MAX = 1000
# Not more digits than any number of 64 bits has.
_LABEL = re.compile(rb"[+-]?0*[0-9]{1,19}")

_SINGLE = {"name": "utf8", "payload": "bytes"}
# Stored where there is no value.
_EMPTY: dict[str, Any] = {"utf8": "", "bytes": b"", "i64": 0}

_Group = list[Member]


class TarSource(Source):
    """A record per file, or per group of files that WebDataset treats as a sample.

    The files of a group are adjacent; their names are equal up to the first dot. If one of the
    first groups has several files beside its label, each group is a record: its `name`, and a
    column for each extension, utf8 for text, else bytes; a sample that lacks a file, or its label,
    has null there. Otherwise each file is a record: its `name` and `payload`, and all have a label
    or none has. The number in `key.cls` is the label of its group. With `raw` each file is a
    record, whatever its name.
    """

    _grouped: bool

    _names_are_stored = True

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Look at the first groups, which decide what a record is."""
        options.allow(path, "a tar", "columns", "drop", "raw")
        self.skipped = Counter()
        self.size_bytes = self._size_of(path)
        self._path = path
        self._raw = options.raw
        first = list(_some(self._groups_of(Part(0, WHOLE, 0), Counter(), only_looks=True)))
        if not first:
            raise ValueError(f"{path} has no files in it: there is nothing to pack")
        grouped = isinstance(options.like, TarSource) and options.like._grouped
        schema = self._look(first, grouped) if not self._raw else _SINGLE
        self._grouped = "payload" not in schema
        self._picks = bool(options.columns or options.drop)
        self._columns = picked(schema, options.columns, path, options.drop)
        self._labelled = "label" in self._columns
        self._is_labelled = "label" in schema
        self._lacks: frozenset[str] = frozenset()
        self._gives_values = self._gives_files = False
        self.schema: Mapping[str, str] = self._columns
        if self._grouped:
            self._take_shape_of(options.like)
            self._lacks = frozenset(n for n in self._columns if n != "name" and is_name(n))
            self.schema = _with_marks(self._columns, self._lacks)
            if (part := _part_of_another(self._columns, self._lacks)) is not None:
                raise _unfit(path, part, f", leave it out with --drop '{part}'")
            self.metadata = nulls_in(())
        self.key = "name" if "name" in self.schema else None

    def samples(self) -> Iterator[Progressed]:
        """Yield the files, or the groups, in the tar's order.

        Raises:
            CorruptionError: the tar, or its compressed data, is damaged or truncated.
            ValueError: a sample has other files than the first ones, or files that are not
                adjacent.
        """
        yield from self.samples_of(Part(0, WHOLE, self.size_bytes), self.skipped)

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return runs of samples of about this size, by the headers alone.

        Raises:
            ValueError: the files of a sample are not adjacent, and may be in several parts.
        """
        if self.size_bytes <= size_bytes or not is_plain(self._path):
            return [Part(0, WHOLE, self.size_bytes)]
        return parts_between(self._marks(), size_bytes)

    def samples_of(self, part: Part, skipped: Counter[str]) -> Iterator[Progressed]:
        """Yield the files, or the groups, of a part.

        Raises:
            ValueError: the tar is another one now, or was changed, so that contents may be those
                of other headers; see also `samples`.
        """
        before = self._identity()
        if self._gives_files:
            yield from self._in_files(part, skipped)
        else:
            for sample, position_bytes in ahead(self._samples(part, skipped)):
                yield self._given(sample), position_bytes - part.begin
        # The writer has read the contents of the last sample, too, when it asks for one more.
        if self._identity() != before:
            raise ValueError(
                f"{self._path} was changed while it was read: pack it when nothing writes to it "
                "any more"
            )

    def _given(self, sample: Mapping[str, Any]) -> OneSample:
        """The sample as it is written, or as a function gets it."""
        if self._grouped and not self._gives_values:
            return self._stored(sample)
        return {name: sample.get(name) for name in self._columns}

    def _marks(self) -> Iterator[Mark]:
        """Beginnings of samples, until something that a reader must say."""
        key, number, together = "", -1, Together(self._path)
        yield Mark(0, 0, 0)
        for name, at in headers_of(self._path):
            if is_hidden(name):
                continue
            if self._raw or number < 0 or _key(name) != key:
                key, number = _key(name), number + 1
                if not self._raw:
                    together.take(key)
                if number:
                    yield Mark(at, at, number)
        yield Mark(self.size_bytes, self.size_bytes, number + 1)

    @property
    def _arrow_fields(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Columns of samples, some of which may be null; else those of the schema do."""
        if not self._grouped:
            return None
        try:
            pa = pyarrow()
        except ImportError:
            return None
        kinds = {"utf8": pa.string(), "bytes": pa.binary(), "i64": pa.int64()}
        fields = [pa.field(n, kinds[kind], n in self._lacks) for n, kind in self._columns.items()]
        return pa.schema(fields)

    def give_files(self) -> None:
        """Let the writer read contents from the tar."""
        self._gives_files = True

    def give_values(self) -> None:
        """Let samples have None where a file is not there."""
        self._gives_values = True

    def _in_files(self, part: Part, skipped: Counter[str]) -> Iterator[Progressed]:
        """Yield samples for a writer that reads their contents, many at a time."""
        rows = TarRows(self._path, self._columns, self._lacks)
        number, at = part.first, part.begin
        for sample, position_bytes in ahead(self._samples(part, skipped)):
            can_wait = rows.take(sample)
            if rows.are_enough or not can_wait:
                yield from rows.given(number, at - part.begin)
                number += rows.forget()
            if not can_wait:
                yield self._given(sample), position_bytes - part.begin
                number += 1
            at = position_bytes
        yield from rows.given(number, at - part.begin)

    def _stored(self, sample: Mapping[str, Any]) -> Lacking:
        """The sample, with what says where it has values."""
        stored: dict[str, Any] = {}
        for name, kind in self._columns.items():
            value = sample.get(name)
            if name in self._lacks:
                stored[f"{name}:valid"] = value is not None
            stored[name] = _EMPTY[kind] if value is None else value
        return Lacking(stored, frozenset(n for n in self._lacks if sample.get(n) is None))

    def _take_shape_of(self, first: Source | None) -> None:
        """Take the columns of the first tar, if it has all that are here."""
        if isinstance(first, TarSource) and self._columns.keys() <= first._columns.keys():
            self._columns, self._labelled = first._columns, first._labelled
            self._is_labelled = first._is_labelled

    def _look(self, first: list[_Group], grouped: bool) -> dict[str, str]:
        """The columns of the first groups, which are samples if several files are in one."""
        together = Together(self._path)
        for group in first:
            together.take(_key(group[0].name))
        fields = [
            [_extension(member.name) for member in group if not _is_label(member)]
            for group in first
        ]
        label = (
            {"label": "i64"} if any(_is_label(each) for group in first for each in group) else {}
        )
        if max(map(len, fields)) <= 1 and not grouped:
            return {**label, **_SINGLE}
        columns = {field: _type_of(field) for field in dict.fromkeys(chain(*fields))}
        # Where `x` has values is in the stored column `x:valid`.
        known = (*_OURS, "payload", "", *(f"{name}:valid" for name in (*_OURS, *columns)))
        if taken := [name for name in known if name in columns]:
            raise _unfit(self._path, taken[0])
        return {**label, "name": "utf8", **columns}

    def _samples(self, part: Part, skipped: Counter[str]) -> Iterator[tuple[dict[str, Any], int]]:
        together = Together(self._path)
        for group in self._groups_of(part, skipped):
            if not self._raw:
                together.take(_key(group[0].name))
            self._check_late_label(group)
            label = self._label(group) if self._labelled else {}
            members = [each for each in group if self._raw or not _is_label(each)]
            if not members:
                raise ValueError(
                    f"{self._path}: {group[0].name} is a label without a file: "
                    "add the file, remove the label, or pack each file as a record with --raw"
                )
            if self._grouped:
                yield {**label, **self._fields(group, members)}, group[-1].position_bytes
                continue
            if not self._raw:
                self._check_single(group, members)
            for member in members:
                sample = {**label, "name": member.name, "payload": self._value(member)}
                yield sample, member.position_bytes

    def _check_late_label(self, group: _Group) -> None:
        """Check that no label comes where the first samples had none, which nothing would hold."""
        if self._grouped and not (self._is_labelled or self._picks) and any(map(_is_label, group)):
            raise ValueError(
                f"{self._path}: the sample {_key(group[0].name).lstrip('/')} has a label (.cls), "
                "and the first ones have none: name the columns with --column, or pack each file "
                "as a record with --raw"
            )

    def _check_single(self, group: _Group, members: list[Member]) -> None:
        """Check that a tar that began with single files continues with single files."""
        late_label = len(members) < len(group) and not (self._labelled or self._picks)
        if len(members) > 1 or late_label:
            names = ", ".join(member.name for member in group[:5])
            raise ValueError(
                f"{self._path}: {names} are a sample of WebDataset, unlike the first files: pack "
                "each file as a record with --raw"
            )

    def _fields(self, group: _Group, members: list[Member]) -> dict[str, Any]:
        name = _key(group[0].name).lstrip("/")
        extensions = [_extension(member.name) for member in members]
        self._check_extensions(name, extensions)
        fields: dict[str, Any] = {"name": name}
        for extension, member in zip(extensions, members, strict=True):
            is_text = _type_of(extension) == "utf8"
            fields[extension] = _text(self._path, member) if is_text else self._value(member)
        if any(isinstance(value, bytes) for value in fields.values()):
            return {name: _read(value) for name, value in fields.items()}
        return fields

    def _value(self, member: Member) -> bytes | Member:
        """The content; or where it is, if the writer reads it."""
        return member if self._gives_files and member.held is None else member.content

    def _check_extensions(self, name: str, extensions: list[str]) -> None:
        wanted = [column for column in self._columns if column not in _OURS]
        lacking = [each for each in wanted if each not in extensions and each not in self._lacks]
        more = [] if self._picks else [each for each in extensions if each not in wanted]
        if lacking or more or len(set(extensions)) < len(extensions):
            raise ValueError(
                f"{self._path}: the sample {name} has the files .{', .'.join(extensions)}, the "
                f"first ones have .{', .'.join(wanted)}: name columns that all have with --column, "
                "or pack each file as a record with --raw"
            )

    def _label(self, group: _Group) -> dict[str, int]:
        labels = [member for member in group if _is_label(member)]
        if not labels and self._grouped:
            return {}
        if len(labels) != 1:
            raise ValueError(
                f"{self._path}: {group[0].name} has {len(labels)} labels (.cls), others have one; "
                "every group needs one, unless --column names other columns"
            )
        text = labels[0].content.strip()
        if not _LABEL.fullmatch(text) or not is_label(int(text)):
            raise ValueError(
                f"{self._path}: {labels[0].name} is {text[:40]!r}, not a 64-bit integer: name "
                "other columns with --column, or pack each file as a record with --raw"
            )
        return {"label": int(text)}

    def _size_of(self, path: str) -> int:
        return _places.size_of(path)

    def _identity(self) -> tuple[Any, ...]:
        return _places.identity(self._path)

    def _members(
        self, part: Part, skipped: Counter[str], only_looks: bool = False
    ) -> Iterable[Member]:
        return TarMembers(self._path, skipped, part, only_looks=only_looks)

    def _groups_of(
        self, part: Part, skipped: Counter[str], only_looks: bool = False
    ) -> Iterator[_Group]:
        members = _shown(self._members(part, skipped, only_looks), skipped)
        if self._raw:
            yield from ([member] for member in members)
            return
        for key, group in groupby(members, key=lambda member: _key(member.name)):
            files = list(islice(group, _GROUP_FILES_MAX + 1))
            if len(files) > _GROUP_FILES_MAX:
                raise ValueError(
                    f"{self._path}: more than {_GROUP_FILES_MAX} files are called "
                    f"{key.lstrip('/')}.*: pack each file as a record with --raw"
                )
            yield files


class Together:
    """Checks that the files of each sample stand together in a tar.

    Files of one sample in two places are two samples else, each with null for what the other has.
    """

    def __init__(self, path: str) -> None:
        """Before the first sample."""
        self._path = path
        self._seen: set[int] = set()  # Hashes: a tar may have millions of samples.

    def take(self, key: str) -> None:
        """Look at the next sample.

        Raises:
            ValueError: it came before.
        """
        if (found := hash(key)) in self._seen:
            raise ValueError(
                f"{self._path}: the files of the sample {key.lstrip('/')} are not adjacent: "
                "make the tar again, sorted by name (tar --sort=name), or pack each file as a "
                "record with --raw"
            )
        self._seen.add(found)


class PipedTar(TarSource):
    """A tar from standard input: what was looked at is kept until it is read."""

    def __init__(self, options: SourceOptions) -> None:
        """Look at the first groups; see `TarSource`.

        Raises:
            ValueError: standard input is a terminal.
        """
        self._input = sys.stdin.buffer
        if self._input.isatty():
            raise ValueError("standard input is a terminal: pipe a tar into this command")
        self._looked: deque[_Group] | None = None
        super().__init__("standard input", options)
        self._path = "standard input"

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return the whole, which is read once."""
        return [Part(0, WHOLE, 0)]

    def _size_of(self, path: str) -> int:
        return 0

    def _identity(self) -> tuple[Any, ...]:
        return ()

    def _members(
        self, part: Part, skipped: Counter[str], only_looks: bool = False
    ) -> Iterable[Member]:
        return TarMembers("standard input", self.skipped, part, self._input)

    def _groups_of(
        self, part: Part, skipped: Counter[str], only_looks: bool = False
    ) -> Iterator[_Group]:
        if self._looked is None:
            self._looked = deque()
            self._groups = super()._groups_of(part, self.skipped)
            for group in self._groups:
                self._looked.append(group)
                yield group
            return
        while self._looked:
            yield self._looked.popleft()
        yield from self._groups


def _shown(members: Iterable[Member], skipped: Counter[str]) -> Iterator[Member]:
    """Without hidden files, as of folders: macOS's tar adds `._NAME` to each NAME."""
    for member in members:
        if is_hidden(member.name):
            skipped[HIDDEN] += 1
        else:
            yield member


def _with_marks(columns: Mapping[str, str], lacks: frozenset[str]) -> dict[str, str]:
    """The stored columns, where some may be null."""
    stored = {}
    for name, kind in columns.items():
        if name in lacks:
            stored[f"{name}:valid"] = "bool"
        stored[name] = kind
    return stored


def _part_of_another(columns: Mapping[str, str], lacks: frozenset[str]) -> str | None:
    """A column that would be read as a part of another one, such as `x[]:i64` as a list `x`."""
    read = {name: kind for name, kind in columns.items() if is_name(name)}
    for name in [each for each in columns if each not in read]:
        read[name] = columns[name]
        found = columns_of(parse(_with_marks(read, lacks)))
        layout = layout_of(found)
        if {*(layout.names if layout else (each.name for each in found))} != read.keys():
            return name
    return None


def _unfit(path: str, extension: str, remedy: str = "") -> ValueError:
    return ValueError(
        f"{path}: a sample has a file with the extension .{extension}, which cannot name a column: "
        f"rename it{remedy}, or pack each file as a record with --raw"
    )


def _some(groups: Iterator[_Group]) -> Iterator[_Group]:
    size_bytes = 0
    for number, group in enumerate(groups, start=1):
        yield group
        size_bytes += sum(member.size_bytes for member in group)
        if number == _LOOK_GROUPS or size_bytes > _LOOK_BYTES:
            return


def _read(value: Any) -> Any:  # noqa: ANN401 - of any column
    return value.content if isinstance(value, Member) else value


def _text(path: str, member: Member) -> str:
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


def _is_label(member: Member) -> bool:
    return _extension(member.name) == _LABELS
