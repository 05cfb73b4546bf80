"""The files in a tar, plain or compressed, to the very end of the archive.

Python's tarfile ends at the first header that it does not understand and looks no further. Here the
last file must be followed by the end of an archive, and only zeros after that.
"""

import io
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import BinaryIO, NamedTuple

from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._decompressed import Stream
from ffrecord.pack._source import WHOLE, Part, check_text
from ffrecord.pack._tar_headers import Headers

_BLOCK_BYTES = 512
# Zeros of a sparse file, whose header alone says how many there are: they become memory.
_HOLES_BYTES_MAX = 1 << 30


class Member(NamedTuple):
    """A file in a tar, and the position in the tar's file after it."""

    name: str
    size_bytes: int
    position_bytes: int
    held: bytes | None
    """The content, if it was read."""
    tar: "PlainTar | None" = None
    """Else where it is read from,"""
    offset_bytes: int = 0
    """and where it is in that."""

    @property
    def content(self) -> bytes:
        """The content.

        Raises:
            CorruptionError: the tar was cut since its header was read.
        """
        if self.held is not None:
            return self.held
        assert self.tar is not None
        return self.tar.read(self.offset_bytes, self.size_bytes)


class PlainTar:
    """A tar on a disk, open for as long as one of its members is there."""

    def __init__(self, path: str) -> None:
        """Open it."""
        self._path = path
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        """Read a range of it.

        Raises:
            CorruptionError: the tar was cut since its headers were read.
        """
        found = b""
        while len(found) < size_bytes:
            at = offset_bytes + len(found)
            if not (piece := os.pread(self.descriptor, size_bytes - len(found), at)):
                raise CorruptionError(f"{self._path} is truncated: it was cut while it was read")
            found = found + piece if found else piece
        return found

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def is_tar(path: str) -> bool:
    """Recognised by its first header, or by its name if that cannot be decompressed."""
    try:
        with _places.open_input(path) as file:
            head = Stream(file, path).read(_BLOCK_BYTES)
    except CorruptionError:
        return ".t" in os.path.basename(path)  # .tar.gz, .tgz: the error then says what is damaged.
    if head == bytes(_BLOCK_BYTES):
        return True
    try:
        tarfile.TarInfo.frombuf(head, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def headers_of(path: str) -> Iterator[tuple[str, int]]:
    """Name of each file of a plain tar, and where its headers begin, without reading contents.

    Ends where it cannot go on, or where a header that holds for all files after it comes: nothing
    after that can be read without what is before.
    """
    with suppress(tarfile.TarError, EOFError), _places.open_input(path) as file:
        if not _places.is_address(path):
            headers = Headers(file.fileno(), 0, WHOLE, reads_contents=False)
            for header in headers:
                yield header.name, header.offset_bytes
            file.seek(headers.at)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for info in tar:
                if tar.pax_headers.keys() - {"comment"}:
                    return
                if info.isfile() or info.islnk():
                    yield info.name, info.offset
                tar.members = []  # type: ignore[attr-defined]


def is_hidden(name: str) -> bool:
    """Whether a name, or that of a folder in it, begins with a dot."""
    return any(part[:1] == "." and part not in (".", "..") for part in name.split("/"))


class _TarStream(Stream):
    """Stores the last read: tarfile, which reads headers, does not report it."""

    last = b""

    def read(self, size: int = -1) -> bytes:
        """As a stream reads."""
        self.last = super().read(size)
        return self.last


class TarMembers:
    """Reads a tar, or a part of it, once, in its order."""

    def __init__(
        self,
        path: str,
        skipped: Counter[str],
        part: Part,
        piped: BinaryIO | None = None,
        *,
        only_looks: bool = False,
    ) -> None:
        """Store the path; entries that are not files are counted in `skipped`.

        The content of a pipe, which is open already, is read once, and only forward. With
        `only_looks`, contents are not wanted.
        """
        self._piped = piped
        self._only_looks = only_looks
        self._path = path
        self._skipped = skipped
        self._part = part
        self._targets: dict[str, list[tarfile.TarInfo]] | None = None

    def __iter__(self) -> Iterator[Member]:
        """Yield every file.

        Raises:
            CorruptionError: the tar, or its compressed data, is damaged or truncated.
            ValueError: it holds an entry of an unknown kind, a name that is not UTF-8, or a hard
                link in a compressed tar.
        """
        with (
            _places.open_input(self._path)
            if self._piped is None
            else nullcontext(self._piped) as raw
        ):
            begin, end = self._part.begin, self._part.end
            if self._piped is None and not _places.is_address(self._path):
                tar = PlainTar(self._path)
                headers = Headers(tar.descriptor, begin, end, reads_contents=not self._only_looks)
                for found in headers:
                    place = (tar, found.content_bytes)
                    yield Member(found.name, found.size_bytes, found.end_bytes, None, *place)
                begin = headers.at
                if end != WHOLE and begin >= end:
                    return
            stream = _TarStream(raw, self._path, begin)
            try:
                with tarfile.open(fileobj=stream, mode="r:") as rest:
                    for info in rest:
                        if (content := self._content(rest, stream, info)) is not None:
                            name = check_text(info.name, self._path)
                            at = raw.tell() if self._piped is None else stream.tell()
                            yield Member(name, len(content), at, content)
                        # Else it remembers them all.
                        rest.members = []  # type: ignore[attr-defined]
                        if end != WHOLE and rest.offset >= end:
                            return
                    self._check_end(rest, stream)
            except (tarfile.TarError, EOFError, io.UnsupportedOperation) as error:
                raise self._damaged(str(error)) from error

    def _content(self, tar: tarfile.TarFile, stream: Stream, info: tarfile.TarInfo) -> bytes | None:
        """The content of a file; None if it is not a file, and need not be."""
        if info.isdir():
            return None
        if info.islnk():
            return self._linked(stream, info)
        if info.issym():
            self._skipped["symbolic links"] += 1
            return None
        if info.isfifo() or info.isdev():
            self._skipped["special files"] += 1
            return None
        if not info.isfile() or info.type not in tarfile.SUPPORTED_TYPES:
            raise ValueError(
                f"{self._path}: {info.name!r} is an entry of type {info.type!r}, which is not "
                "supported: make the tar again, with plain files"
            )
        return self._read(tar, info)

    def _read(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
        # A list of what is no hole, that the newest versions of typeshed do not know.
        stored = getattr(info, "sparse", None)
        if stored and info.size - sum(size for _, size in stored) > _HOLES_BYTES_MAX:
            raise ValueError(
                f"{self._path}: {info.name!r} is sparse, and {info.size} bytes with its holes: if "
                "that is true, make the tar again without --sparse"
            )
        file = tar.extractfile(info)
        assert file is not None
        content = file.read()
        if len(content) != info.size:
            raise CorruptionError(
                f"{self._path} is truncated: {info.name!r} has {len(content)} of {info.size} bytes"
            )
        return content

    def _linked(self, stream: Stream, link: tarfile.TarInfo) -> bytes | None:
        """The target of the hard link `link`, read from its place in the tar."""
        if stream.is_compressed or self._piped is not None:
            raise ValueError(
                f"{self._path}: {link.name!r} is a hard link to {link.linkname!r}, which is read "
                "again in a plain tar only: pack a file of it that is not compressed"
            )
        with (
            _places.open_input(self._path) as file,
            tarfile.open(fileobj=file, mode="r:") as tar,
        ):
            if self._targets is None:
                self._targets = {}
                for info in tar:
                    self._targets.setdefault(info.name, []).append(info)
            found = link
            while found.islnk():
                found = self._led_to(found)
            return self._content(tar, stream, found)

    def _led_to(self, link: tarfile.TarInfo) -> tarfile.TarInfo:
        """The entry of that name at the time tar reads the link: a later one may have it, too."""
        assert self._targets is not None
        for info in reversed(self._targets.get(link.linkname, [])):
            if info.offset < link.offset:
                return info
        raise self._damaged(f"the hard link {link.name!r} leads to no file before it")

    def _check_end(self, tar: tarfile.TarFile, stream: _TarStream) -> None:
        """Check that the block that tarfile took for the end is the end of an archive."""
        if len(stream.last) < _BLOCK_BYTES:
            raise self._damaged("the end of the tar is missing")
        if stream.last != bytes(_BLOCK_BYTES) or not stream.finish():
            raise self._damaged(
                f"other data than a header follows at byte {tar.offset}; if several tars "
                "were joined to one, pack them separately"
            )

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(f"{self._path} is damaged or truncated: {what}")
