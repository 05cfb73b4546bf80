"""A folder of MDS shards, as MosaicML Streaming writes them (format version 2).

`index.json` says what each shard holds. A shard is the count of its samples (u32), where each
begins and the last one ends (u32 each), and the samples: the sizes of those columns that have no
fixed one (u32 each), then all columns. Numbers are little-endian.
"""

import bz2
import gzip
import hashlib
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ffrecord.errors import CorruptionError
from ffrecord.pack.ahead import ahead
from ffrecord.pack.source import Key, Progressed, SourceOptions, check_key, needed, picked

_INDEX = "index.json"
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
    return os.path.isfile(os.path.join(path, _INDEX))


class _Column(NamedTuple):
    """`size_bytes` is None where each sample has its own; `type` is empty if it is not packed."""

    name: str
    encoding: str
    size_bytes: int | None
    type: str


class MdsSource:
    """A column for each one of the samples, in the order of shards and samples.

    Numbers and arrays of a fixed shape stay what they are; str, json and numbers written out are
    utf8; bytes, jpeg and png are bytes. Others are refused by name unless others are asked for.
    """

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Read the index; see `open_source` for arguments and errors."""
        options.allow(path, "a folder of MDS shards", "columns")
        self.classes: tuple[str, ...] = ()
        self.metadata: Mapping[str, bytes] = {}
        self.skipped: Counter[str] = Counter()
        self.key: Key = None
        self._path = path
        self._shards = self._read_index()
        self._columns = self._columns_of(self._shards[0])
        schema = {column.name: column.type for column in self._columns}
        self.schema: Mapping[str, str] = picked(schema, options.columns, path)
        for column in self._columns:
            if column.name in self.schema and not column.type:
                raise ValueError(
                    f"{path}: the column '{column.name}' is encoded as {column.encoding}, which is "
                    "not packed: name the others with --column"
                )
        self.size_bytes = sum(self._info(shard)["bytes"] for shard in self._shards)

    def samples(self) -> Iterator[Progressed]:
        """Yield the samples.

        Raises:
            CorruptionError: a shard is not what the index says.
            ValueError: it has other columns than the first, or text that is not UTF-8.
        """
        yield from ahead(self._samples())

    def _samples(self) -> Iterator[Progressed]:
        behind_bytes = 0
        for shard in self._shards:
            if self._columns_of(shard) != self._columns:
                raise ValueError(f"{self._name_of(shard)} has other columns than the first shard")
            data = self._read_shard(shard)
            offsets = self._offsets(shard, data)
            size_bytes = self._info(shard)["bytes"]
            for number, (begin, end) in enumerate(pairwise(offsets)):
                where = f"{self._name_of(shard)}: sample {number}"
                done_bytes = size_bytes * end // len(data)
                yield self._sample(where, data[begin:end]), behind_bytes + done_bytes
            behind_bytes += size_bytes

    def _sample(self, where: str, data: bytes) -> dict[str, Any]:
        ragged = [column for column in self._columns if column.size_bytes is None]
        at = 4 * len(ragged)
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

    def _read_index(self) -> list[dict[str, Any]]:
        name = os.path.join(self._path, _INDEX)
        with open(name, "rb") as file:
            try:
                shards = json.load(file)["shards"]
                for shard in shards:
                    if (shard["format"], shard["version"]) != ("mds", 2):
                        raise ValueError(f"{shard['format']} of version {shard['version']}")
                    check_key(self._info(shard)["basename"])
                    self._columns_of(shard)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise ValueError(f"{name} is no index of MDS shards: {error!r}") from None
        if not shards:
            raise ValueError(f"{name} names no shards: there is nothing to pack")
        return list(shards)

    @staticmethod
    def _info(shard: dict[str, Any]) -> dict[str, Any]:
        """Of the file that is there: compressed or not."""
        return dict(shard["zip_data"] or shard["raw_data"])

    @staticmethod
    def _columns_of(shard: dict[str, Any]) -> list[_Column]:
        parts = (shard["column_names"], shard["column_encodings"], shard["column_sizes"])
        return [_Column(*part, _type_of(part[1])) for part in zip(*parts, strict=True)]

    def _name_of(self, shard: dict[str, Any]) -> str:
        return os.path.join(self._path, self._info(shard)["basename"])

    def _read_shard(self, shard: dict[str, Any]) -> bytes:
        info, name = self._info(shard), self._name_of(shard)
        with open(name, "rb") as file:
            data = file.read()
        if len(data) != info["bytes"]:
            raise CorruptionError(f"{name} has {len(data)} bytes, its index says {info['bytes']}")
        for algorithm, digest in (info.get("hashes") or {}).items():
            known = algorithm in hashlib.algorithms_available
            if known and hashlib.new(algorithm, data).hexdigest() != digest:
                raise CorruptionError(f"{name} fails its {algorithm}")
        return _expanded(name, shard["compression"], data) if shard["zip_data"] else data

    def _offsets(self, shard: dict[str, Any], data: bytes) -> list[int]:
        """Where samples begin, and the last one ends."""
        count = shard["samples"]
        offsets = np.frombuffer(data[4 : 8 + 4 * count], "<u4").astype(np.int64)
        if (
            data[:4] != int(count).to_bytes(4, "little")
            or len(offsets) != count + 1
            or (np.diff(offsets, prepend=8 + 4 * count) < 0).any()
            or offsets[-1] != len(data)
        ):
            raise CorruptionError(f"{self._name_of(shard)} is not laid out as its index says")
        return list(map(int, offsets))


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


def _expanded(name: str, compression: str | None, data: bytes) -> bytes:
    form = (compression or "").partition(":")[0]
    try:
        if form == "gz":
            return gzip.decompress(data)
        if form == "bz2":
            return bz2.decompress(data)
        if form == "zstd":
            zstandard = needed("zstandard", "an MDS shard compressed with zstd")
            return bytes(zstandard.ZstdDecompressor().decompressobj().decompress(data))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise CorruptionError(f"{name} cannot be expanded: {error}") from error
    raise ValueError(f"{name} is compressed by {compression}; gz, bz2 and zstd are known")
