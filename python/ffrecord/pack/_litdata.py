"""A folder of LitData chunks, as `litdata.optimize` writes them.

`index.json` lists the chunks and how values are encoded. A chunk is the count of its samples (u32),
where each begins and the last one ends (u32 each), and the samples: the size of each value (u32
each), then the values.
"""

import json
import os
import struct
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from ffrecord._tables.formats import pyarrow
from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._row_table import RowTable
from ffrecord.pack._source import check_key

_INDEX = "index.json"
_INDEX_BYTES_MAX = 64 << 20
# Behind the samples of chunks whose rows are tables.
_ARROW_MARK = b"LDARW01\0"
_BYTES = ("bytes", "jpeg", "image", "file", "video", "audio", "tifffile", "pdf")
_SCALARS = {"int": struct.Struct("<q"), "float": struct.Struct("<d"), "bool": struct.Struct("<?")}
# The numbers of types in the two lists of litdata/constants.py; torch's bf16 is left out.
_NUMPY = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_TORCH = {0: "f4", 1: "f4", 2: "f8", 3: "f8", 8: "f2", 9: "f2", 11: "u1", 12: "i1", 13: "i2"}
_TORCH |= {14: "i2", 15: "i4", 16: "i4", 17: "i8", 18: "i8", 19: "?", 20: "u2"}
_DIMENSIONS_MAX = 32
_WITH_HEAD, _WITHOUT_HEAD = ("numpy", "tensor"), ("no_header_numpy", "no_header_tensor")


def is_litdata(path: str) -> bool:
    """Whether it is a folder with an index of chunks; MDS has one of shards."""
    file = os.path.join(path, _INDEX)
    if not _places.is_file(file) or _places.size_of(file) > _INDEX_BYTES_MAX:
        return False
    with _places.open_input(file) as opened:
        found = opened.read()
    return b'"chunks"' in found and b'"shards"' not in found


class _Value(NamedTuple):
    """How the values of a column are encoded."""

    name: str
    form: str
    dtype: str
    """The types of arrays."""


class LitDataSource(RowTable):
    """A column for each value of a sample; those in dicts within it are called `outer/inner`.

    Numbers, text, bytes and files stay what they are. Arrays of one dimension are lists; others
    have the shape that the first sample's have. Pickles and other encodings are refused.
    """

    what = "folder of LitData chunks"

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The columns of the index."""
        index = os.path.join(self.path, _INDEX)
        try:
            with _places.open_input(index) as file:
                found = json.load(file)
            chunks = [
                (check_key(each["filename"]), int(each["chunk_size"])) for each in found["chunks"]
            ]
            self._values = list(self._columns(found["config"]))
        except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(f"{index} is no index of LitData: {error!r:.80}") from None
        self._paths = [os.path.join(self.path, name) for name, _ in chunks]
        if not chunks or min(count for _, count in chunks) < 0:
            raise ValueError(f"{index} has no chunks: there is nothing to pack")
        self._begins = list(accumulate((count for _, count in chunks), initial=0))
        self.row_count = self._begins[-1]
        self.files = (index, *self._paths)
        self.size_bytes = sum(map(_places.size_of, self._paths))
        pa = pyarrow()
        fields = [(each.name, self._type(each)) for each in self._values]
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])

    def read(self, names: list[str], begin: int, end: int) -> Any:  # noqa: ANN401 - pyarrow's
        """Return some rows."""
        columns: dict[str, list[Any]] = {name: [] for name in names}
        for number, sample in self._samples(begin, end):
            for value, data in zip(self._values, self._split(number, sample), strict=True):
                if value.name in columns:
                    columns[value.name].append(self._decoded(number, value, data))
        pa = pyarrow()
        schema = pa.schema([self.found.field(name) for name in names])
        arrays = [_array(f"{self.path}: '{f.name}'", columns[f.name], f.type) for f in schema]
        return pa.table(arrays, schema=schema)

    def _columns(self, config: dict[str, Any]) -> Iterator[_Value]:
        for name in ("compression", "encryption", "ipc_compression"):
            if config.get(name):
                raise ValueError(
                    f"{self.path} has {name} ({config[name]!r:.40}), which is not packed: write it "
                    "again without, with litdata"
                )
        names = [""]
        if config.get("data_spec"):
            _, spec = json.loads(config["data_spec"])
            names = list(_names(spec, ""))
        if len(names) != len(config["data_format"]) or len(set(names)) < len(names):
            raise KeyError(f"{len(names)} names")
        for name, form in zip(names, config["data_format"], strict=True):
            kind, _, code = str(form).partition(":")
            dtype = _dtype(kind, int(code)) if kind in _WITHOUT_HEAD else ""
            is_known = dtype or kind in (*_WITH_HEAD, *_BYTES, *_SCALARS, "str", "text")
            if not is_known and self.is_wanted(name or "value"):
                raise self._unpacked(name or "value", f"is encoded as {form}")
            yield _Value(name or "value", kind, dtype)

    def _unpacked(self, name: str, how: str) -> ValueError:
        return ValueError(
            f"{self.path}: the column '{name}' {how}, which is not packed: --drop leaves it out, "
            "--column names those to keep"
        )

    def _type(self, value: _Value) -> Any:  # noqa: ANN401 - pyarrow has no types
        pa = pyarrow()
        if not self.is_wanted(value.name):
            return pa.binary()  # For messages: it is not read.
        simple = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
        simple |= {"str": pa.string(), "text": pa.string()}
        if value.dtype:
            number = pa.from_numpy_dtype(np.dtype(value.dtype))
            return pa.list_(pa.field("item", number, nullable=False))
        if value.form not in _WITH_HEAD:
            return simple.get(value.form, pa.binary())
        if (found := self.read_before()) is not None:
            return found.field(value.name).type
        for number, sample in self._samples(0, min(1, self.row_count)):
            data = self._split(number, sample)[self._values.index(value)]
            array = self._decoded(number, value, data)
            if 0 in array.shape:
                raise self._unpacked(value.name, f"has arrays of the shape {array.shape}")
            kind = pa.from_numpy_dtype(array.dtype)
            return pa.fixed_shape_tensor(kind, array.shape) if array.shape else kind
        return pa.binary()

    def _samples(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of some samples."""
        for place, path in enumerate(self._paths):
            first, last = self._begins[place : place + 2]
            if first >= end or last <= begin:
                continue
            with _places.open_input(path) as file:
                offsets = self._offsets(path, file, last - first)
                for number in range(max(begin, first), min(end, last)):
                    at, after = offsets[number - first], offsets[number - first + 1]
                    file.seek(at)
                    yield number, file.read(after - at)

    def _offsets(self, path: str, file: Any, count: int) -> list[int]:  # noqa: ANN401 - a file
        size_bytes = _places.size_of(path)
        file.seek(max(0, size_bytes - len(_ARROW_MARK)))
        if file.read() == _ARROW_MARK:
            raise ValueError(f"{path} has its rows as tables of Arrow, which are not packed")
        file.seek(0)
        head = 8 + 4 * count
        data = file.read(head) if head <= size_bytes else b""
        numbers = np.frombuffer(data[: len(data) // 4 * 4], "<u4").astype(np.int64)
        if len(numbers) != count + 2 or numbers[0] != count:
            raise CorruptionError(f"{path} has not the {count} samples that its index says")
        offsets = numbers[1:]
        if offsets[0] != head or (np.diff(offsets) < 0).any() or offsets[-1] != size_bytes:
            raise CorruptionError(f"{path} has {size_bytes} bytes, and its samples do not fit them")
        return [int(each) for each in offsets]

    def _split(self, number: int, sample: bytes) -> list[bytes]:
        head = 4 * len(self._values)
        sizes = np.frombuffer(sample[:head], "<u4").tolist() if len(sample) >= head else []
        if head + sum(sizes) != len(sample) or not sizes:
            raise CorruptionError(f"{self.path}: sample {number} is not as long as its values")
        ends = list(accumulate(sizes, initial=head))
        return [sample[at:after] for at, after in pairwise(ends)]

    def _decoded(self, number: int, value: _Value, data: bytes) -> Any:  # noqa: ANN401 - any value
        try:
            if value.form in _SCALARS:
                return _SCALARS[value.form].unpack(data)[0]
            if value.form in ("str", "text"):
                return data.decode()
            if value.dtype:
                return np.frombuffer(data, value.dtype)
            return data if value.form in _BYTES else _with_head(value.form, data)
        except _UnknownTypeError as error:
            raise self._unpacked(value.name, f"has arrays of {error}") from None
        except (struct.error, ValueError) as error:
            raise CorruptionError(
                f"{self.path}: sample {number}: '{value.name}' is no {value.form}: {error}"
            ) from None


def _names(spec: dict[str, Any], prefix: str) -> Iterator[str]:
    """The name of each value of a sample, in their order."""
    children = spec["children_spec"]
    if spec["type"] is None:
        yield prefix
        return
    if spec["type"] in ("builtins.dict", "collections.OrderedDict"):
        keys = json.loads(spec["context"])
    else:
        keys = range(len(children))
    for key, child in zip(keys, children, strict=True):
        yield from _names(child, f"{prefix}/{key}" if prefix else str(key))


class _UnknownTypeError(Exception):
    """Arrays have a type that records do not hold."""


def _dtype(form: str, code: int) -> str:
    """The type of that number; empty if records hold none such."""
    if form.endswith("tensor"):
        return _TORCH.get(code, "")
    return _NUMPY[code] if code < len(_NUMPY) else {13: "?"}.get(code, "")


def _with_head(form: str, data: bytes) -> Any:  # noqa: ANN401 - an array
    """An array with its type and shape in front."""
    order = ">" if form == "tensor" else "<"
    code, count = struct.unpack_from(f"{order}2I", data)
    if count > _DIMENSIONS_MAX:
        raise ValueError(f"it has {count} dimensions")
    shape = struct.unpack_from(f"{order}{count}I", data, 8)
    if not (dtype := _dtype(form, code)):
        raise _UnknownTypeError(f"the type {code} of litdata")
    return np.frombuffer(data, dtype, offset=8 + 4 * count).reshape(shape)


def _array(what: str, values: list[Any], kind: Any) -> Any:  # noqa: ANN401
    pa = pyarrow()
    if not isinstance(kind, pa.BaseExtensionType):
        return pa.array(values, kind)
    shapes = {value.shape for value in values}
    if shapes - {tuple(kind.shape)} or any(
        pa.from_numpy_dtype(value.dtype) != kind.value_type for value in values
    ):
        found = sorted({f"{value.dtype} of shape {value.shape}" for value in values})
        raise ValueError(
            f"{what} has arrays that are {', '.join(found)}, and its first one is "
            f"{kind.value_type} of shape {tuple(kind.shape)}: --drop leaves the column out"
        )
    flat = pa.array(np.concatenate([value.reshape(-1) for value in values]))
    rows = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(kind.shape)))
    return pa.ExtensionArray.from_storage(kind, rows.cast(kind.storage_type))
