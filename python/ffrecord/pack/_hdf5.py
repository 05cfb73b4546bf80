"""HDF5 files, read by h5py: a column for each dataset, whose rows are its first dimension."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ffrecord._tables.formats import pyarrow
from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._row_table import RowTable
from ffrecord.pack._source import needed
from ffrecord.pack._table import ROWS_BYTES, ROWS_MAX

_MAGIC = b"\x89HDF\r\n\x1a\n"
_NUMBERS = "biuf"
# All of a chunk is decompressed at once.
_CHUNK_BYTES_MAX = 512 << 20
_READ_BYTES_MAX = 64 << 20
_GROUPS_MAX = 10_000


def is_hdf5(path: str) -> bool:
    """Recognised by its content; Parquet, zip and others have marks of their own."""
    if not _places.is_file(path):
        return False
    with _places.open_input(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


class Hdf5Source(RowTable):
    """Numbers with the shape of a row, text, and lists of numbers; all with as many rows.

    The column of a dataset in a group is called `group/dataset`. Links to other files, and datasets
    whose values are in other files, are refused.
    """

    what = "HDF5 file"
    _input: Any = None

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Types of the datasets."""
        self._h5 = needed("h5py", "an HDF5 file", "h5py")
        self.damage = (OSError, RuntimeError, KeyError)
        self._input = _places.for_library(self.path)
        self._file = self._h5.File(self._input, "r")
        self._datasets: dict[str, Any] = {}
        self._list(self._file, "", {})
        if not self._datasets:
            raise ValueError(f"{self.path} has no datasets: there is nothing to pack")
        fields = [self._field(name, each) for name, each in self._datasets.items()]
        self._count_rows()
        return pyarrow().schema(fields)

    def read(self, names: list[str], begin: int, end: int) -> Any:  # noqa: ANN401
        """Return some rows."""
        schema = pyarrow().schema([self.found.field(name) for name in names])
        arrays = [self._array(field, begin, end) for field in schema]
        return pyarrow().table(arrays, schema=schema)

    def damaged(self, error: Exception) -> Exception:
        """As of tables; but what a store says is no damage."""
        return getattr(self._input, "failure", None) or super().damaged(error)

    def rows_at_once(self) -> int:
        """Some MiB, but whole chunks if those are not large: each read decompresses all of them."""
        wanted = [found for name, found in self._datasets.items() if self.is_wanted(name)]
        row_bytes = sum(math.prod(d.shape[1:]) * d.dtype.itemsize for d in wanted)
        chunk = max((found.chunks[0] for found in wanted if found.chunks), default=1)
        rows = max(1, min(ROWS_BYTES // max(row_bytes, 1), ROWS_MAX))
        return chunk if rows < chunk and chunk * row_bytes <= _READ_BYTES_MAX else rows

    def _list(self, group: Any, prefix: str, seen: dict[Any, str]) -> None:  # noqa: ANN401
        """Find the datasets, in the order of their names."""
        identity = self._h5.h5o.get_info(group.id)
        if (place := (identity.fileno, identity.addr)) in seen or len(seen) > _GROUPS_MAX:
            raise ValueError(
                f"{self.path}: the group '{prefix}' is also '{seen.get(place, '')}', or there are "
                f"more than {_GROUPS_MAX}"
            )
        seen[place] = prefix
        for name in group:
            path = f"{prefix}{name}"
            link = group.get(name, getlink=True)
            if isinstance(link, self._h5.ExternalLink):
                raise ValueError(
                    f"{self.path}: '{path}' is a link to another file ({link.filename}), which is "
                    "not followed: copy what it links to into this one"
                )
            elif isinstance(link, self._h5.SoftLink):
                self.unread["links within the file"] += 1
            elif isinstance(found := group[name], self._h5.Group):
                self._list(found, f"{path}/", seen)
            elif isinstance(found, self._h5.Dataset):
                self._datasets[path] = found

    def _count_rows(self) -> None:
        counts = {n: len(d) for n, d in self._datasets.items() if self.is_wanted(n)}
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise ValueError(f"{self.path}: datasets differ in their rows: {said}; --drop some")
        self.row_count = next(iter(counts.values()), 0)

    def _field(self, name: str, found: Any) -> Any:  # noqa: ANN401 - h5py and pyarrow
        pa = pyarrow()
        if not self.is_wanted(name):
            return pa.field(name, pa.binary(), nullable=False)  # For messages: it is not read.
        if found.shape is None or not found.shape or 0 in found.shape[1:]:
            raise self._refused(name, f"has the shape {found.shape}, and no rows")
        if found.external or found.is_virtual:
            raise self._refused(name, "has its values in other files")
        if math.prod(found.chunks or ()) * found.dtype.itemsize > _CHUNK_BYTES_MAX:
            raise self._refused(name, f"has chunks of more than {_CHUNK_BYTES_MAX >> 20} MiB")
        try:
            kind = self._type(found.dtype, found.shape[1:])
        except pa.ArrowNotImplementedError:
            kind = None
        if kind is None:
            raise self._refused(name, f"has values of type {_shown(self._h5, found.dtype)}")
        return pa.field(name, kind, nullable=False)

    def _type(self, dtype: Any, shape: tuple[int, ...]) -> Any:  # noqa: ANN401
        """The type of a column; None if records hold none such."""
        pa = pyarrow()
        if dtype.kind in _NUMBERS:
            number = pa.from_numpy_dtype(dtype.newbyteorder("="))
            return pa.fixed_shape_tensor(number, shape) if shape else number
        inner = self._h5.check_vlen_dtype(dtype)
        if shape or (not dtype.hasobject and dtype.kind != "S"):
            return None
        if self._h5.check_string_dtype(dtype):
            return pa.string()
        if inner is not None and inner.kind in _NUMBERS:
            item = pa.from_numpy_dtype(inner.newbyteorder("="))
            return pa.list_(pa.field("item", item, nullable=False))
        return None

    def _array(self, field: Any, begin: int, end: int) -> Any:  # noqa: ANN401
        pa = pyarrow()
        found = self._datasets[field.name][begin:end]
        kind = field.type
        if isinstance(kind, pa.BaseExtensionType):
            flat = pa.array(np.ascontiguousarray(_native(found)).reshape(-1))
            rows = pa.FixedSizeListArray.from_arrays(flat, math.prod(kind.shape))
            return pa.ExtensionArray.from_storage(kind, rows.cast(kind.storage_type))
        if pa.types.is_string(kind):
            return pa.array(self._texts(field.name, found, begin), kind)
        if pa.types.is_list(kind):
            return pa.array([_native(row) for row in found], kind)
        return pa.array(_native(found), kind)

    def _texts(self, name: str, values: Any, first: int) -> Iterator[str]:  # noqa: ANN401
        for number, value in enumerate(values, first):
            try:
                yield value if isinstance(value, str) else bytes(value).decode()
            except UnicodeDecodeError as error:
                raise CorruptionError(
                    f"{self.path}: row {number} of '{name}' is not UTF-8: {error}"
                ) from None

    def _refused(self, name: str, how: str) -> ValueError:
        return ValueError(
            f"{self.path}: '{name}' {how}, which is not packed: --drop leaves it out, --column "
            "names those to keep"
        )


def _native(values: Any) -> Any:  # noqa: ANN401 - an array
    """The numbers in this machine's byte order."""
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _shown(h5: Any, dtype: Any) -> str:  # noqa: ANN401
    """The name of a type of HDF5 for people."""
    if h5.check_ref_dtype(dtype) is not None:
        return "reference"
    return "object" if dtype.hasobject and dtype.names is None else str(dtype)
