"""A folder of MDS shards, as MosaicML Streaming writes them (format version 2).

`index.json` describes each shard. A shard is the count of its samples (u32), where each begins and
the last one ends (u32 each), and the samples: the sizes of the columns without a fixed size (u32
each), then all columns. Numbers are little-endian.
"""

import hashlib
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._ahead import ahead
from ffrecord.pack._decompressed import Stream
from ffrecord.pack._source import (
    Progressed,
    Source,
    SourceOptions,
    check_key,
    check_text,
    needed,
    picked,
)

T = TypeVar("T")

_INDEX = "index.json"
# Fed to zstd at a time: so much becomes some MiB at most.
_FED_BYTES = 1 << 10
_NUMBERS = {
    "int": "i64",
    **{
        f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
}
_TEXTS = ("str", "json", "str_int", "str_float", "str_decimal")
_BYTES = ("bytes", "jpeg", "png")
_ARRAY = re.compile(r"ndarray:(\w+):(\d+(?:,\d+)*)")


def is_mds(path: str) -> bool:
    """Whether it is a folder with an index."""
    return _places.is_file(os.path.join(path, _INDEX))


class _Column(NamedTuple):
    """`size_bytes` is None where each sample has its own; `type` is empty if it is not packed."""

    name: str
    encoding: str
    size_bytes: int | None
    type: str


class _File(NamedTuple):
    """A shard's file as the index describes it."""

    path: str
    size_bytes: int
    hashes: dict[str, str]

    def check(self, data: bytes, where: str) -> None:
        """Check that `data` is as the index describes it, by the hashes that this Python has."""
        if len(data) != self.size_bytes:
            raise CorruptionError(
                f"{where} has {len(data)} bytes, its index says {self.size_bytes}"
            )
        for algorithm, digest in self.hashes.items():
            found = _hash(algorithm, data)
            if found not in (None, digest):
                raise CorruptionError(f"{where} fails its {algorithm}")


class _Shard(NamedTuple):
    """`packed` is the file on the disk in place of `raw` if the shard is compressed."""

    columns: list[_Column]
    sample_count: int
    compression: str
    raw: _File
    packed: _File | None

    @property
    def file(self) -> _File:
        """The file that exists."""
        return self.packed or self.raw


class MdsSource(Source):
    """One column per column of the samples, in the order of shards and samples.

    Numbers and arrays of a fixed shape keep their type; str, json and numbers written out become
    utf8; bytes, jpeg and png become bytes. Other columns raise an error that names them, unless
    `columns` leaves them out.
    """

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Read the index; see `open_source` for arguments and errors."""
        options.allow(path, "a folder of MDS shards", "columns", "drop")
        self.skipped = Counter()
        self._path = path
        self._shards = self._read_index()
        self._columns = self._shards[0].columns
        schema = {column.name: column.type for column in self._columns}
        self.schema = picked(schema, options.columns, path, options.drop)
        for column in self._columns:
            if column.name in self.schema and not column.type:
                raise ValueError(
                    f"{path}: the column '{column.name}' is encoded as {column.encoding}, which is "
                    "not packed: name the others with --column"
                )
        self.size_bytes = sum(shard.file.size_bytes for shard in self._shards)

    def samples(self) -> Iterator[Progressed]:
        """Yield the samples.

        Raises:
            CorruptionError: a shard does not match the index.
            ValueError: it has other columns than the first, or text that is not UTF-8.
        """
        yield from ahead(self._samples())

    def _samples(self) -> Iterator[Progressed]:
        behind_bytes = 0
        for shard in self._shards:
            if shard.columns != self._columns:
                raise ValueError(f"{shard.file.path} has other columns than the first shard")
            data = _contents(shard)
            for number, (begin, end) in enumerate(pairwise(_offsets(shard, data))):
                where = f"{shard.file.path}: sample {number}"
                done_bytes = shard.file.size_bytes * end // len(data)
                yield self._sample(where, data[begin:end]), behind_bytes + done_bytes
            behind_bytes += shard.file.size_bytes

    def _sample(self, where: str, data: bytes) -> dict[str, Any]:
        ragged = [column for column in self._columns if column.size_bytes is None]
        at = 4 * len(ragged)
        if at > len(data):
            raise CorruptionError(f"{where} has {len(data)} bytes, and no room for its sizes")
        sizes = iter(np.frombuffer(data[:at], "<u4").tolist())
        fields: list[tuple[_Column, bytes]] = []
        for column in self._columns:
            size_bytes = next(sizes, 0) if column.size_bytes is None else column.size_bytes
            if column.name in self.schema:
                fields.append((column, data[at : at + size_bytes]))
            at += size_bytes
        if at != len(data):
            raise CorruptionError(f"{where} has {len(data)} bytes, and its sizes say {at}")
        return {column.name: _value(where, column, content) for column, content in fields}

    def _read_index(self) -> list[_Shard]:
        name = os.path.join(self._path, _INDEX)
        with _places.open_input(name) as file:
            try:
                shards = [_parsed(shard, self._path) for shard in json.load(file)["shards"]]
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise ValueError(f"{name} is no index of MDS shards: {error!r}") from None
        if not shards:
            raise ValueError(f"{name} names no shards: there is nothing to pack")
        return shards


def _parsed(shard: dict[str, Any], folder: str) -> _Shard:
    """A shard of the index; checks all of it before any of it is used."""
    if (shard["format"], shard["version"]) != ("mds", 2):
        raise ValueError(f"{shard['format']} of version {shard['version']}")
    parts = (shard["column_names"], shard["column_encodings"], shard["column_sizes"])
    columns = [
        _Column(
            _a(str, name),
            _a(str, encoding),
            None if size_bytes is None else _count(size_bytes),
            _type_of(encoding),
        )
        for name, encoding, size_bytes in zip(*parts, strict=True)
    ]
    if not columns or len({column.name for column in columns}) < len(columns):
        raise ValueError("it has no columns, or several of one name")
    for column in columns:
        fixed_bytes = _fixed_bytes(column)
        if fixed_bytes is not None and column.size_bytes != fixed_bytes:
            raise ValueError(
                f"the column {column.name!r} is {column.encoding} and of {column.size_bytes} bytes"
            )
    packed = shard["zip_data"]
    return _Shard(
        columns,
        _count(shard["samples"]),
        _a(str, shard["compression"] or ""),
        _parsed_file(shard["raw_data"], folder),
        None if packed is None else _parsed_file(packed, folder),
    )


def _parsed_file(info: dict[str, Any], folder: str) -> _File:
    name = check_text(check_key(_a(str, info["basename"])), folder)
    hashes = {_a(str, key): _a(str, value) for key, value in (info.get("hashes") or {}).items()}
    return _File(os.path.join(folder, name), _count(info["bytes"]), hashes)


def _a(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise ValueError(f"{value!r} is no count of 32 bits")
    return value


def _contents(shard: _Shard) -> bytes:
    """Decompressed if it is compressed; checked before and after."""
    data, _ = _places.read(shard.file.path)
    shard.file.check(data, shard.file.path)
    if shard.packed is not None:
        data = _decompressed(shard.file.path, shard.compression, data, shard.raw.size_bytes)
        shard.raw.check(data, f"{shard.file.path}, decompressed,")
    return data


def _offsets(shard: _Shard, data: bytes) -> list[int]:
    """Where samples begin, and where the last one ends."""
    count = shard.sample_count
    head, head_bytes = data[: 8 + 4 * count], 8 + 4 * count
    offsets = np.frombuffer(head[4 : len(head) // 4 * 4], "<u4").astype(np.int64)
    if (
        head[:4] != count.to_bytes(4, "little")
        or len(offsets) != count + 1
        or (np.diff(offsets, prepend=head_bytes) < 0).any()
        or offsets[-1] != len(data)
    ):
        raise CorruptionError(f"{shard.file.path} is not laid out as its index says")
    return list(map(int, offsets))


def _hash(algorithm: str, data: bytes) -> str | None:
    """None if Python lacks it, or it has no fixed size."""
    try:
        found = hashlib.new(algorithm, data)
    except ValueError:
        return None
    return found.hexdigest() if found.digest_size else None


def _fixed_bytes(column: _Column) -> int | None:
    """How many bytes each value has, if the encoding fixes that."""
    if column.type in ("", "utf8", "bytes"):
        return None
    kind, _, shape = column.type.rstrip("]").partition("[")
    return int(kind[1:]) // 8 * math.prod(int(size) for size in shape.split(",") if size)


def _type_of(encoding: str) -> str:
    if encoding in _NUMBERS:
        return _NUMBERS[encoding]
    if encoding in _TEXTS:
        return "utf8"
    if encoding in _BYTES:
        return "bytes"
    match = _ARRAY.fullmatch(encoding)
    return f"{_NUMBERS[match[1]]}[{match[2]}]" if match and match[1] in _NUMBERS else ""


def _value(where: str, column: _Column, data: bytes) -> Any:  # noqa: ANN401 - of any column
    if column.type == "bytes":
        return data
    if column.type == "utf8":
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: '{column.name}' is not UTF-8: {error}") from None
    kind, _, shape = column.type.rstrip("]").partition("[")
    numbers: npt.NDArray[Any] = np.frombuffer(data, f"<{kind[0]}{int(kind[1:]) // 8}")
    return numbers.reshape([int(size) for size in shape.split(",")]) if shape else numbers[0]


def _decompressed(path: str, compression: str, data: bytes, size_bytes: int) -> bytes:
    """The content; what goes far beyond `size_bytes` is not decompressed, which takes memory."""
    form = compression.partition(":")[0]
    if form in ("gz", "bz2"):
        return Stream(io.BytesIO(data), path).read(size_bytes + 1)
    if form != "zstd":
        raise ValueError(f"{path} is compressed by {compression}; gz, bz2 and zstd are known")
    zstandard = needed("zstandard", "an MDS shard compressed with zstd")
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    pieces, found_bytes, fed = [], 0, 0
    try:
        while fed < len(data) and found_bytes <= size_bytes and not decompressor.eof:
            pieces.append(decompressor.decompress(data[fed : fed + _FED_BYTES]))
            found_bytes += len(pieces[-1])
            fed += _FED_BYTES
    except zstandard.ZstdError as error:
        raise CorruptionError(f"{path} cannot be decompressed: {error}") from error
    is_whole = decompressor.eof and not decompressor.unused_data and fed >= len(data)
    if found_bytes <= size_bytes and not is_whole:
        raise CorruptionError(f"{path} cannot be decompressed: it is truncated, or bytes follow it")
    return b"".join(pieces)
