"""Sources of other kinds, made as their own writers make them: their rows, and where each lies."""

import io
import json
import random
import struct
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from files_paths import Kept
from table_values import KINDS, Columns, Kind

_HERE: Mapping[str, Kind] = {
    **KINDS,
    "tokens": Kind(
        pa.list_(pa.field("item", pa.int32(), nullable=False)),
        ([], [3], [1, 2, 2**31 - 1], list(range(90))),
    ),
}
_ENCODINGS = {
    **{"bytes": "bytes", "blob": "bytes", "utf8": "str", "i64": "int64", "u8": "uint8"},
    **{"f32": "float32", "f32[3]": "ndarray:float32:3", "i64[2]": "ndarray:int64:2"},
}
_STORED = {"i64": "<i8", "u8": "u1", "f32": "<f4", "f32[3]": "<f4", "i64[2]": "<i8"}
_SIZES = {"i64": 8, "u8": 1, "f32": 4, "f32[3]": 12, "i64[2]": 16}


class Fields(Columns):
    """Columns whose names stand before their kinds: `payload=bytes`."""

    __slots__ = ()

    @property
    def names(self) -> tuple[str, ...]:
        """As the source has them."""
        return tuple(each.partition("=")[0] for each in self.spelled)

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each column."""
        pairs = (each.rstrip("?").split("=") for each in self.spelled)
        return {name: _HERE[kind] for name, kind in pairs}


@dataclass
class Shard:
    """One file."""

    path: Path
    rows: list[Any]
    places: list[tuple[int, int]]
    """Where the bytes of each row begin and end."""


@dataclass
class Source:
    """The files of a folder, all of one kind, and where their indexes are."""

    kind: str
    folder: Path
    columns: Fields
    index_dir: Path | None = None
    shards: list[Shard] = field(default_factory=list)

    def __repr__(self) -> str:
        counts = [len(shard.rows) for shard in self.shards]
        return f"{self.kind} in {self.folder.name}: {counts} records"

    @property
    def address(self) -> str:
        """What to open."""
        return str(self.index_dir or self.folder)

    def add(self, count: int, seed: int) -> Shard:
        """Write one more shard."""
        chance = random.Random(f"{self.kind} {self.folder.name} {len(self.shards)} {seed}")
        path = self.folder / f"{len(self.shards):03}{KINDS_IN_PLACE[self.kind].suffix}"
        shard = KINDS_IN_PLACE[self.kind].write(path, self.columns, count, chance)
        self.shards.append(shard)
        if self.kind == "mds":
            self.describe()
        return shard

    def describe(self) -> None:
        """Write the `index.json` of MDS."""
        shards = [_shard_of_mds(self.columns, shard) for shard in self.shards]
        text = json.dumps({"version": 2, "shards": shards})
        (self.folder / "index.json").write_text(text)

    def description_of(self, shard: Shard) -> Path | None:
        """The other file that describes a shard."""
        if self.kind == "mds":
            return self.folder / "index.json"
        return shard.path.with_suffix(".idx") if self.kind == "megatron" else None

    def index_of(self, shard: Shard) -> Path:
        """The index of a shard."""
        name = f"{shard.path.name}.ffindex"
        return (self.index_dir or self.folder) / name

    def kept(self, shards: Iterable[Shard] | None = None) -> Kept:
        """All rows, or those of some shards, as a file that is read."""
        rows = [row for shard in shards or self.shards for row in shard.rows]
        key = self.columns.key or None
        keys = [row[key].encode() for row in rows] if key else None
        return Kept(self.address, self.columns, rows, keys, key)


# JSON lines and TFRecords.


def _write_lines(path: Path, columns: Fields, count: int, chance: random.Random) -> Shard:
    shard, data = Shard(path, [], []), b""
    for number in range(count):
        data += chance.choice((b"", b"", b"\n", b" \t\r\n"))
        text = "ü" * chance.choice((0, 3, 90, 5000))
        line = json.dumps({"i": number, "text": text}, ensure_ascii=False).encode()
        shard.rows.append({"payload": line})
        shard.places.append((len(data), len(data) + len(line)))
        data += line + chance.choice((b"\n", b"\r\n"))
    path.write_bytes(data if chance.random() < 0.7 else data.rstrip(b"\r\n"))
    return shard


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _entry_of_crc32c(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_CRC32C = [_entry_of_crc32c(value) for value in range(256)]


def _masked(data: bytes) -> bytes:
    crc = _crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _write_tfrecords(path: Path, columns: Fields, count: int, chance: random.Random) -> Shard:
    shard, data = Shard(path, [], []), b""
    for _ in range(count):
        payload = chance.randbytes(chance.choice((0, 1, 90, 3000)))
        length = struct.pack("<Q", len(payload))
        data += length + _masked(length)
        shard.rows.append({"payload": payload})
        shard.places.append((len(data), len(data) + len(payload)))
        data += payload + _masked(payload)
    path.write_bytes(data)
    return shard


# MDS.


def _write_mds(path: Path, columns: Fields, count: int, chance: random.Random) -> Shard:
    shard, stored = Shard(path, [], []), []
    for _ in range(count):
        row = {name: chance.choice(kind.values) for name, kind in columns.kinds.items()}
        shard.rows.append(row)
        stored.append(_sample_of_mds(columns, row))
    head = 4 + 4 * (count + 1)
    begins = np.cumsum([head, *map(len, stored)])
    shard.places = [(int(begin), int(end)) for begin, end in pairwise(begins)]
    data = struct.pack("<I", count) + begins.astype("<u4").tobytes() + b"".join(stored)
    path.write_bytes(data)
    return shard


def _sample_of_mds(columns: Fields, row: dict[str, Any]) -> bytes:
    sizes, values = b"", b""
    for name, spelled in _kinds_of(columns):
        value = row[name]
        if spelled in _STORED:
            values += np.asarray(value, _STORED[spelled]).tobytes()
            continue
        data = value.encode() if isinstance(value, str) else value
        sizes, values = sizes + struct.pack("<I", len(data)), values + data
    return sizes + values


def _kinds_of(columns: Fields) -> list[tuple[str, str]]:
    return [(name, kind) for name, _, kind in (one.partition("=") for one in columns.spelled)]


def _shard_of_mds(columns: Fields, shard: Shard) -> dict[str, Any]:
    kinds = [kind for _, kind in _kinds_of(columns)]
    sizes = [_SIZES.get(kind) for kind in kinds]
    size_bytes = shard.path.stat().st_size
    return {
        "format": "mds",
        "version": 2,
        "column_names": list(columns.names),
        "column_encodings": [_ENCODINGS[kind] for kind in kinds],
        "column_sizes": sizes,
        "samples": len(shard.rows),
        "raw_data": {"basename": shard.path.name, "bytes": size_bytes, "hashes": {}},
        "zip_data": None,
        "compression": None,
    }


# Tars.

Groups = list[list[tuple[str, bytes]]]
"""Names and contents."""


def _write_tar(path: Path, files: Groups, chance: random.Random) -> list[tuple[int, int]]:
    """Return where each group of files is."""
    form = chance.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    with tarfile.open(path, "w", format=form) as tar:
        for group in files:
            for name, content in group:
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(content), 1
                tar.addfile(info, io.BytesIO(content))
    with tarfile.open(path) as tar:
        members = {member.name: member for member in tar}
    return [
        (members[group[0][0]].offset, members[group[-1][0]].offset_data + len(group[-1][1]))
        for group in files
    ]


def write_apart(source: Path, path: Path, number: int) -> bool:
    """Write a tar of samples again, with a file of one of them apart from its others.

    False if no sample has several files, or there is no other sample to stand between them.
    """
    with tarfile.open(source) as tar:
        members = [(each, tar.extractfile(each)) for each in tar if each.isfile()]
        files = [(each, taken.read() if taken else b"") for each, taken in members]
    samples: dict[str, list[Any]] = {}
    for each, data in files:
        samples.setdefault(each.name.partition(".")[0], []).append((each, data))
    several = [name for name, own in samples.items() if len(own) > 1]
    if not several or len(samples) < 2:
        return False
    chosen = several[number % len(several)]
    own = samples[chosen]
    # A label without a file is another error.
    labels = [place for place, (each, _) in enumerate(own) if each.name.partition(".")[2] == "cls"]
    taken_out = own.pop(labels[0] if labels else number % len(own))
    order = [pair for each in samples.values() for pair in each]
    order.insert(0 if chosen == list(samples)[-1] else len(order), taken_out)
    with tarfile.open(path, "w") as tar:
        for each, data in order:
            tar.addfile(each, io.BytesIO(data))
    return True


def _name(path: Path, number: int, chance: random.Random) -> str:
    return f"{chance.choice(('', 'folder/', 'long' * 40 + '/'))}{path.stem}-{number:04}"


def _write_samples(path: Path, columns: Fields, count: int, chance: random.Random) -> Shard:
    """Samples of WebDataset, of which some lack a file."""
    rows, files = [], []
    for number in range(count):
        name = _name(path, number, chance)
        lacks = set() if number == 0 else {each for each in "ltjs" if chance.random() < 0.3}
        if {"t", "j", "s"} <= lacks:
            lacks.remove(chance.choice("tjs"))
        row: dict[str, Any] = dict.fromkeys(("label", "name", "jpg", "txt", "seg.cls"))
        row["name"] = name
        group = []
        if "l" not in lacks:
            row["label"] = chance.choice((0, -5, 2**63 - 1))
            group.append((f"{name}.cls", b" %d\n" % row["label"]))
        if "j" not in lacks:
            row["jpg"] = chance.choice((*KINDS["bytes"].values, KINDS["blob"].values[1]))
            group.append((f"{name}.jpg", row["jpg"]))
        if "t" not in lacks:
            row["txt"] = chance.choice(KINDS["utf8"].values)
            group.insert(chance.randrange(len(group) + 1), (f"{name}.TXT", row["txt"].encode()))
        if number == 0:
            group.sort(key=lambda each: each[0].endswith("TXT"))
        if "s" not in lacks:  # No label.
            row["seg.cls"] = chance.choice(KINDS["bytes"].values)
            group.append((f"{name}.seg.cls", row["seg.cls"]))
        rows.append(row)
        files.append(group)
    return Shard(path, rows, _write_tar(path, files, chance))


def _write_files(path: Path, columns: Fields, count: int, chance: random.Random) -> Shard:
    """A record for each file."""
    files = [
        [(f"{_name(path, number, chance)}.jpg", chance.choice(_HERE["bytes"].values))]
        for number in range(count)
    ]
    if count:
        files[-1] = [(files[-1][0][0], KINDS["blob"].values[0])]
    rows = [{"name": name, "payload": content} for ((name, content),) in files]
    return Shard(path, rows, _write_tar(path, files, chance))


# Megatron.


def _write_megatron(path: Path, columns: Fields, count: int, chance: random.Random) -> Shard:
    texts = [chance.choice(_HERE["tokens"].values) for _ in range(count)]
    sizes = np.array(list(map(len, texts)), "<i4")
    ends = np.cumsum(4 * sizes.astype("<i8"))
    begins = ends - 4 * sizes
    path.write_bytes(b"".join(np.asarray(text, "<i4").tobytes() for text in texts))
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, count, count + 1)
    documents = np.arange(count + 1, dtype="<i8").tobytes()
    index = head + sizes.tobytes() + begins.astype("<i8").tobytes() + documents
    path.with_suffix(".idx").write_bytes(index)
    places = list(zip(begins.tolist(), ends.tolist(), strict=True))
    return Shard(path, [{"tokens": text} for text in texts], places)


@dataclass(frozen=True)
class KindInPlace:
    """A kind of sources."""

    suffix: str
    write: Callable[[Path, Fields, int, random.Random], Shard]
    columns: tuple[Fields, ...]


def _mds_columns(*kinds: str) -> Fields:
    spelled = tuple(f"{name}={kind}" for name, kind in zip("abcdef", kinds, strict=False))
    return Fields(spelled, False)


_PAYLOAD = (Fields(("payload=bytes",), False),)
KINDS_IN_PLACE = {
    "jsonl": KindInPlace(".jsonl", _write_lines, _PAYLOAD),
    "tfrecord": KindInPlace(".tfrecord", _write_tfrecords, _PAYLOAD),
    "mds": KindInPlace(
        ".mds",
        _write_mds,
        (
            _mds_columns("bytes", "i64", "utf8"),
            _mds_columns("blob", "u8", "f32"),
            _mds_columns("f32[3]", "i64[2]"),
            _mds_columns("utf8", "bytes", "blob"),
        ),
    ),
    "samples": KindInPlace(
        ".tar",
        _write_samples,
        (
            Fields(
                ("label=i64?", "name=utf8", "jpg=bytes?", "txt=utf8?", "seg.cls=bytes?"),
                False,
                "name",
            ),
        ),
    ),
    "files": KindInPlace(
        ".tar", _write_files, (Fields(("name=utf8", "payload=bytes"), False, "name"),)
    ),
    "megatron": KindInPlace(".bin", _write_megatron, (Fields(("tokens=tokens",), True),)),
}
