"""TFRecord files, plain or gzip: frames of a length and a payload, a CRC-32C of each.

The frame is described at tensorflow.org/tutorials/load_data/tfrecord.
"""

import os
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from ffrecord.errors import CorruptionError
from ffrecord.pack._ahead import ahead
from ffrecord.pack._example import Values, parse_example
from ffrecord.pack._source import Progressed, Source, SourceOptions, needed, picked
from ffrecord.pack._stream import Stream

_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
# What is looked at to see which columns there are: so many records, or bytes if that is less.
_LOOK_RECORDS, _LOOK_BYTES = 1000, 64 << 20


def is_tfrecord(path: str) -> bool:
    """Recognised by its first length, which has a checksum, since names of TFRecords vary."""
    try:
        with open(path, "rb") as raw:
            head = Stream(raw, path).read(_LENGTH.size + _CRC.size)
        return _is_sound(head[: _LENGTH.size], head[_LENGTH.size :])
    except ImportError:
        return ".tfrecord" in os.path.basename(path)  # To be told then what is missing.
    except CorruptionError:
        return ".tfrecord" in os.path.basename(path)  # To be told what is damaged.
    except OSError:
        return False


class TFRecordSource(Source):
    """A column for each feature of `tf.train.Example`, or the payload of each record, on request.

    The first records say what the columns are. A feature with one byte string (or sometimes none)
    is bytes. One with one number each time is f32 or i64, one with always as many a vector of
    them; numbers of any count are bytes: little-endian, 4 or 8 bytes each.
    """

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Look at the first records; see `open_source` for arguments and errors."""
        options.allow(path, "a TFRecord file", "columns", "drop", "ragged", "raw")
        self.skipped = Counter()
        self.size_bytes = os.stat(path).st_size
        self._path = path
        self._raw = options.raw
        self._picks = bool(options.columns or options.drop)
        parsed = self._parsed()
        self._records: Iterator[tuple[Any, int]] = self._payloads() if self._raw else parsed
        self.schema: Mapping[str, str]
        # What the values of each feature are, also those kept as bytes; of later files, too.
        self.kinds: dict[str, str] = {}
        if isinstance(options.like, TFRecordSource):
            self.schema, self.kinds = options.like.schema, options.like.kinds
            self.types = options.like.types
        elif options.raw:
            self.schema = picked({"payload": "bytes"}, options.columns, path, options.drop)
        else:
            first = list(_some(parsed))
            self._records = chain(first, parsed)
            self.schema = self._look(first, options)
            self.types = {  # Of numbers that are bytes because their count varies.
                name: f"list of {kind}"
                for name, kind in self.kinds.items()
                if self.schema[name] == "bytes" and kind != "bytes"
            }

    def samples(self) -> Iterator[Progressed]:
        """Yield the records.

        Raises:
            CorruptionError: a checksum is wrong, or the file is truncated.
            ValueError: a record has other features than the first ones.
        """
        yield from ahead(self._samples())

    def _samples(self) -> Iterator[Progressed]:
        for number, (record, position_bytes) in enumerate(self._records):
            if self._raw:
                yield {"payload": record}, position_bytes
                continue
            features: dict[str, Values] = record
            if not self._picks and (new := features.keys() - self.schema.keys()):
                raise self._differs(number, min(new), "is new")
            yield (
                {
                    name: self._value(number, name, kind, features.get(name, []))
                    for name, kind in self.schema.items()
                },
                position_bytes,
            )

    def _look(
        self, first: list[tuple[dict[str, Values], int]], options: SourceOptions
    ) -> dict[str, str]:
        """The schema of the first records."""
        counts: dict[str, set[int]] = {}
        kinds: dict[str, set[str]] = {}
        for number, (features, _) in enumerate(first):
            for name in features.keys() - counts.keys():
                counts[name] = {0} if number else set()  # Those before had none.
            for name in counts:
                values = features.get(name, [])
                counts[name].add(len(values))
                if len(values):
                    kinds.setdefault(name, set()).add(_kind(values))
        names = dict.fromkeys(sorted(counts), "")
        picked(names, options.ragged, self._path)
        schema = {
            name: self._column(name, kinds.get(name, set()), counts[name], name in options.ragged)
            for name in picked(names, options.columns, self._path, options.drop)
        }
        self.kinds = {name: kind for name in schema for kind in kinds.get(name, ())}
        return schema

    def _column(self, name: str, kinds: set[str], counts: set[int], ragged: bool) -> str:
        if len(kinds) > 1 or (kinds == {"bytes"} and max(counts) > 1):
            several = len(kinds) > 1
            what = "values of several kinds" if several else f"up to {max(counts)} byte strings"
            raise ValueError(
                f"{self._path}: the feature '{name}' has {what} in a record: name the wanted "
                "features with --column, or keep whole records with --raw"
            )
        kind = next(iter(kinds), "bytes")
        if kind == "bytes" or ragged or len(counts) > 1:
            return "bytes"
        (count,) = counts
        return kind if count == 1 else f"{kind}[{count}]"

    def _value(self, number: int, name: str, kind: str, values: Values) -> Any:  # noqa: ANN401 - of any column
        found = _kind(values)
        if len(values) and found != self.kinds.setdefault(name, found):
            how = f"has values of kind {found}, not {self.kinds[name]}"
            raise self._differs(number, name, how)
        if isinstance(values, list):
            if len(values) <= 1 and kind == "bytes":
                return values[0] if values else b""
        elif kind == "bytes":
            return values.tobytes()
        elif "[" in kind and f"[{len(values)}]" in kind:
            return values
        elif "[" not in kind and len(values) == 1:
            return values[0]
        raise self._differs(number, name, f"has {len(values)} values, not {kind}")

    def _differs(self, number: int, name: str, how: str) -> ValueError:
        return ValueError(
            f"{self._path}: record {number}: the feature '{name}' {how}, unlike in the first "
            "records: --ragged keeps numbers of any count, --column names the features that all "
            "records have, --raw keeps whole records"
        )

    def _parsed(self) -> Iterator[tuple[dict[str, Values], int]]:
        for number, (payload, position_bytes) in enumerate(self._payloads()):
            try:
                yield parse_example(payload), position_bytes
            except ValueError as error:
                raise ValueError(
                    f"{self._path}: record {number} is {error}; --raw keeps records as they are"
                ) from None

    def _payloads(self) -> Iterator[tuple[bytes, int]]:
        """Each payload, and the position in the file after it."""
        with open(self._path, "rb") as raw:
            file = Stream(raw, self._path)
            while head := file.read(_LENGTH.size):
                (size_bytes,) = _LENGTH.unpack(self._checked(file, head, raw.tell()))
                yield self._checked(file, file.read(size_bytes), raw.tell()), raw.tell()

    def _checked(self, file: Stream, data: bytes, position_bytes: int) -> bytes:
        """`data`, if the checksum that follows in `file` matches."""
        crc = file.read(_CRC.size)
        if len(crc) < _CRC.size or not _is_sound(data, crc):
            what = "is truncated" if len(crc) < _CRC.size else "fails a checksum"
            raise CorruptionError(f"{self._path} {what} before byte {position_bytes}")
        return data


def _some(
    records: Iterator[tuple[dict[str, Values], int]],
) -> Iterator[tuple[dict[str, Values], int]]:
    size_bytes = 0
    for number, (features, position_bytes) in enumerate(records, start=1):
        yield features, position_bytes
        size_bytes += sum(map(_size_bytes, features.values()))
        if number == _LOOK_RECORDS or size_bytes > _LOOK_BYTES:
            return


def _size_bytes(values: Values) -> int:
    return values.nbytes if isinstance(values, np.ndarray) else sum(map(len, values))


def _is_sound(data: bytes, stored: bytes) -> bool:
    """Whether the masked CRC-32C of `data` is the stored one."""
    crc = needed("google_crc32c", "a TFRecord file").value(data)
    masked = ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF
    return bool(stored == _CRC.pack(masked))


def _kind(values: Values) -> str:
    if isinstance(values, list):
        return "bytes"
    return "f32" if values.dtype == np.float32 else "i64"
