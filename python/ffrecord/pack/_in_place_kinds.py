"""The files that can be read in place: where the samples of each kind lie, and what they become."""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ffrecord.errors import ConflictError, CorruptionError
from ffrecord.pack._cutting import is_plain
from ffrecord.pack._inference import check_names
from ffrecord.pack._jsonl import is_json_lines
from ffrecord.pack._mds import _INDEX, MdsSource, _contents, _offsets, _Shard
from ffrecord.pack._source import WHOLE, Part, SourceOptions, check_text
from ffrecord.pack._tar import TarSource, Together, _key
from ffrecord.pack._tar_members import is_hidden, is_tar
from ffrecord.pack._tfrecord import _CRC, _HEAD, is_tfrecord, payloads_of

# Where each of some samples begins, and its size.
Extents = npt.NDArray[np.int64]

_PIECE_BYTES = 4 << 20
# Samples that are found at a time, where each is looked at.
_SAMPLES_AT_ONCE = 4096
_BLOCK_BYTES = 512
_GROUP_FILES_MAX = 1000
_BLANKS = np.frombuffer(b" \t\r\v\f", np.uint8)
_PLAIN, _MDS, _TAR = 0, 1, 2
_MEGATRON, _MDS_FOLDER = 1, 2
_PAYLOAD: Mapping[str, str] = MappingProxyType({"payload": "bytes"})


class Shape(NamedTuple):
    """The kind of the records."""

    schema: Mapping[str, str]
    form: int = _PLAIN
    key: str = ""
    has_nulls: bool = False


class Description:
    """Another file that describes a source, as it was before it was read."""

    def __init__(self, kind: int, path: str) -> None:
        """Look at the file; `kind` is that of `_ffrecord.IndexWriter.create`."""
        found = os.stat(path)
        self._state = (kind, found.st_size, found.st_mtime_ns)

    def is_as(self, known: tuple[int, int, int, int]) -> bool:
        """Whether the file is as an index knows it."""
        return known[:3] == self._state

    def known(self, said: bytes) -> tuple[int, int, int, int]:
        """Return the description for an index; the file says `said` about the source."""
        digest = hashlib.blake2b(said, digest_size=8).digest()
        return (*self._state, int.from_bytes(digest, "little"))


class Indexable(Protocol):
    """A file whose samples are runs of its bytes."""

    path: str
    description: Description | None
    """None if it describes itself."""

    def described(self) -> bytes:
        """Return the part of its description that is about it."""

    def shape(self, like: "Indexable | None") -> Shape:
        """The columns, which are those of `like` if there is another file before it."""

    def samples(self) -> Iterator[Extents]:
        """Yield the places of the samples, in order.

        Raises:
            CorruptionError: the file is damaged or truncated.
            ValueError: it has what cannot be read in place.
        """


def indexables(path: str) -> "list[Indexable]":
    """The files of a folder of MDS shards; or the one at `path`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it cannot be read in place.
    """
    if os.path.isdir(path):
        return list(_shards(path))
    with open(path, "rb"):
        pass  # Missing, or not to be read.
    if not is_plain(path):
        raise _unfit(path, "it is compressed")
    if (stem := path.removesuffix(".bin")) != path and os.path.exists(stem + ".idx"):
        return [_Megatron(path, stem + ".idx")]
    if is_json_lines(path):
        return [_Lines(path)]
    if is_tfrecord(path):
        return [_TFRecords(path)]
    if os.path.getsize(path) and is_tar(path):
        return [_Tar(path)]
    raise _unfit(path, "it is no plain tar, TFRecord file, *.jsonl, or *.bin of Megatron")


def _unfit(path: str, why: str) -> ValueError:
    return ValueError(
        f"{path} cannot be read in place: {why}; make a record file of it (ffrecord-pack)"
    )


def _places(found: Iterable[tuple[int, int]]) -> Iterator[Extents]:
    """Some at a time."""
    held: list[tuple[int, int]] = []
    for each in found:
        held.append(each)
        if len(held) == _SAMPLES_AT_ONCE:
            yield np.array(held, np.int64)
            held = []
    if held:
        yield np.array(held, np.int64)


class _OfItself:
    """A file that no other file describes."""

    description: Description | None = None

    def described(self) -> bytes:
        """Nothing."""
        return b""


class _Lines(_OfItself):
    """JSON lines: each line that is not blank, without its end, as `ffrecord-pack --raw` does."""

    def __init__(self, path: str) -> None:
        self.path = path

    def shape(self, like: Indexable | None) -> Shape:
        return Shape(_PAYLOAD)

    def samples(self) -> Iterator[Extents]:
        begin = at = 0
        with open(self.path, "rb") as file:
            while data := file.read(_PIECE_BYTES):
                found = np.frombuffer(data, np.uint8)
                ends = np.flatnonzero(found == ord("\n")) + at
                at += len(data)
                if len(ends):
                    begins = np.concatenate(([begin], ends[:-1] + 1))
                    begin = int(ends[-1]) + 1
                    yield self._lines(file.fileno(), begins, ends)
            if begin < at:
                yield self._lines(file.fileno(), np.array([begin]), np.array([at]))

    def _lines(self, fd: int, begins: Extents, ends: Extents) -> Extents:
        """Without what is blank, and without a carriage return at their ends."""
        filled = ends > begins
        begins, ends = begins[filled], ends[filled]
        if not len(begins):
            return np.empty((0, 2), np.int64)
        first = int(begins[0])
        data = np.frombuffer(self._read(fd, first, int(ends[-1])), np.uint8)
        while (shorter := (ends > begins) & (data[ends - 1 - first] == ord("\r"))).any():
            ends = ends - shorter
        filled = ends > begins
        begins, ends = begins[filled], ends[filled]
        maybe_blank = np.isin(data[begins - first], _BLANKS)
        for number in np.flatnonzero(maybe_blank):
            line = data[begins[number] - first : ends[number] - first]
            maybe_blank[number] = not line.tobytes().strip()
        return np.stack((begins, ends - begins), axis=1)[~maybe_blank]

    def _read(self, fd: int, begin: int, end: int) -> bytes:
        pieces = []
        while begin < end:
            pieces.append(os.pread(fd, end - begin, begin))  # Each read has 2 GiB at most.
            begin += len(pieces[-1])
            if not pieces[-1]:
                raise ConflictError(
                    f"{self.path} was truncated while it was indexed; make the index when nothing "
                    "writes to the file any more"
                )
        return b"".join(pieces)


class _TFRecords(_OfItself):
    """TFRecords: the payload of each record, as `ffrecord-pack --raw` does."""

    def __init__(self, path: str) -> None:
        self.path = path

    def shape(self, like: Indexable | None) -> Shape:
        return Shape(_PAYLOAD)

    def samples(self) -> Iterator[Extents]:
        yield from _places(self._frames())

    def _frames(self) -> Iterator[tuple[int, int]]:
        begin = _HEAD.size
        for payload, _ in payloads_of(self.path, Part(0, WHOLE, 0)):
            yield begin, len(payload)
            begin += len(payload) + _CRC.size + _HEAD.size


class _Tar(_OfItself):
    """A tar: the files of each sample with their headers."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._source: TarSource | None = None

    def shape(self, like: Indexable | None) -> Shape:
        # Its index may be there from another time.
        first = like.source if isinstance(like, _Tar) else None
        self._source = source = TarSource(self.path, SourceOptions(like=first))
        key = "name" if source.key == "name" else ""
        return Shape(source.schema, _TAR, key, has_nulls=bool(source.metadata))

    @property
    def source(self) -> TarSource:
        """The source of a tar that follows no other one."""
        if self._source is None:
            self._source = TarSource(self.path, SourceOptions())
        return self._source

    def samples(self) -> Iterator[Extents]:
        yield from _places(self._groups())

    def _groups(self) -> Iterator[tuple[int, int]]:
        together = Together(self.path)
        try:
            for key, group in groupby(self._members(), key=lambda member: _key(member.name)):
                together.take(key)
                first = last = next(group)
                for count, last in enumerate(group, start=2):  # noqa: B007 - the last one is used
                    if count > _GROUP_FILES_MAX:
                        raise _unfit(self.path, f"{first.name} has too many files beside it")
                yield first.offset, last.offset_data + last.size - first.offset
        except (tarfile.TarError, EOFError) as error:
            raise CorruptionError(f"{self.path} is damaged or truncated: {error}") from error

    def _members(self) -> Iterator[tarfile.TarInfo]:
        size_bytes = os.stat(self.path).st_size
        with open(self.path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # Else it remembers them all.
                if tar.pax_headers.keys() - {"comment"}:
                    raise _unfit(self.path, "it has a pax header for all files after it")
                if member.islnk() or (not member.isfile() and not self._may_skip(member)):
                    raise _unfit(self.path, f"{member.name} is a link, or of an unknown kind")
                if member.issparse():
                    raise _unfit(self.path, f"{member.name} is sparse")
                if not member.isfile() or is_hidden(member.name):
                    continue
                if member.offset_data + member.size > size_bytes:
                    raise EOFError(f"{member.name} is cut off")
                check_text(member.name, self.path)
                yield member
            self._check_end(file, tar.offset)

    @staticmethod
    def _may_skip(member: tarfile.TarInfo) -> bool:
        return member.isdir() or member.issym() or member.isfifo() or member.isdev()

    @staticmethod
    def _check_end(file: BinaryIO, at: int) -> None:
        """Check that the block which tarfile took for the end of the archive is one."""
        file.seek(at)
        size_bytes = 0
        while data := file.read(_PIECE_BYTES):
            size_bytes += len(data)
            if data.count(0) < len(data):
                raise EOFError(
                    f"other data than a header follows at byte {at}; if several tars were joined "
                    "to one, index or pack them separately"
                )
        if size_bytes < _BLOCK_BYTES:
            raise EOFError("the end of the tar is missing")


class _MdsShard:
    """One shard of a folder of MDS."""

    def __init__(
        self, path: str, shard: _Shard, schema: Mapping[str, str], description: Description | None
    ) -> None:
        self.path = path
        self.description = description
        self._shard = shard
        self._schema = schema

    def described(self) -> bytes:
        """The part of `index.json` about this shard, wherever the folder is."""
        shard = self._shard
        said = (shard.columns, shard.sample_count, shard.raw.size_bytes, shard.raw.hashes)
        return json.dumps(said, sort_keys=True).encode()

    def shape(self, like: Indexable | None) -> Shape:
        return Shape(self._schema, _MDS)

    def samples(self) -> Iterator[Extents]:
        offsets = np.array(_offsets(self._shard, _contents(self._shard)), np.int64)
        yield np.stack((offsets[:-1], np.diff(offsets)), axis=1)


def _shards(folder: str) -> Iterator[_MdsShard]:
    description = Description(_MDS_FOLDER, os.path.join(folder, _INDEX))
    source = MdsSource(folder, SourceOptions())
    check_names(source.schema, folder)
    for shard in source._shards:
        if shard.packed is not None:
            raise _unfit(shard.packed.path, "it is compressed")
        if shard.columns != source._columns:
            raise _unfit(shard.raw.path, "it has other columns than the first shard")
        # That of a shard in a folder below is not beside it.
        is_beside = os.path.samefile(os.path.dirname(shard.raw.path), folder)
        yield _MdsShard(shard.raw.path, shard, source.schema, description if is_beside else None)


class _Megatron:
    """Tokens of Megatron-LM: `.bin` has the sequences, `.idx` beside it where each begins."""

    _MAGIC = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little")
    _TYPES = MappingProxyType({1: "u8", 2: "i8", 3: "i16", 4: "i32", 5: "i64", 8: "u16"})

    def __init__(self, path: str, index: str) -> None:
        self.path = path
        self.description: Description | None = Description(_MEGATRON, index)
        self._index = index
        with open(index, "rb") as file:
            head = file.read(len(self._MAGIC) + 17)
            if len(head) < len(self._MAGIC) + 17 or not head.startswith(self._MAGIC):
                raise _unfit(path, f"{index} is no index of Megatron, version 1")
            self._type = self._TYPES.get(head[len(self._MAGIC)], "")
            self._count = int.from_bytes(head[len(self._MAGIC) + 1 :][:8], "little")
            self._begin = file.tell()
        if not self._type:
            raise _unfit(path, "its tokens are no integers")
        if os.stat(index).st_size < self._begin + 12 * self._count:
            raise CorruptionError(f"{index} is truncated")

    def described(self) -> bytes:
        """The digest of the whole `.idx`."""
        with open(self._index, "rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()

    def shape(self, like: Indexable | None) -> Shape:
        return Shape({f"tokens[]:{self._type}": "bytes"}, has_nulls=True)

    def samples(self) -> Iterator[Extents]:
        width = int(self._type[1:]) // 8
        if not self._count:
            return
        sizes = np.memmap(self._index, "<i4", "r", self._begin, self._count)
        begins = np.memmap(self._index, "<i8", "r", self._begin + 4 * self._count, self._count)
        for at in range(0, self._count, _PIECE_BYTES // 8):
            some = slice(at, at + _PIECE_BYTES // 8)
            yield np.stack((begins[some], sizes[some].astype(np.int64) * width), axis=1)
