"""NumPy's files: an array (.npy), or several of one length (.npz), one row a record."""

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord._tables.schema import DTYPES
from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._source import Progressed, Source, SourceOptions

_MAGIC = b"\x93NUMPY"
_TYPES = {np.dtype(code): name for name, code in DTYPES.items() if name != "bf16"}
_COLUMN = "value"
_MORE = (
    "has more behind its first array: save each array to a file of its own, or all with np.savez"
)


def is_numpy(path: str) -> bool:
    """An array by its content, several by their name."""
    if not _places.is_file(path):
        return False
    with _places.open_input(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC or path.endswith(".npz")


class NumpySource(Source):
    """A column for each array, called as in the .npz, or `value`; row i of each is record i."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Read the shapes; see `open_source` for arguments and errors."""
        options.allow(path, "a file of NumPy's", "columns", "drop")
        self.skipped = Counter()
        self.size_bytes = _places.size_of(path)
        self._path = path
        arrays = self._loaded()
        for name in (*options.columns, *options.drop):
            if name not in arrays:
                raise ValueError(f"{path} has no column '{name}'; columns: {', '.join(arrays)}")
        names = [n for n in options.columns or arrays if n not in options.drop]
        self._arrays = {name: arrays[name] for name in names}
        self.schema = {name: self._type_of(name, each) for name, each in self._arrays.items()}
        counts = {name: len(each) for name, each in self._arrays.items()}
        if len(set(counts.values())) != 1:
            said = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise ValueError(
                f"{path}: arrays differ in their rows: {said or 'none is left'}; --drop leaves one "
                "out"
            )

    def samples(self) -> Iterator[Progressed]:
        """Yield the rows."""
        count = len(next(iter(self._arrays.values())))
        for row in range(count):
            sample = {name: self._value(each[row]) for name, each in self._arrays.items()}
            yield sample, self.size_bytes * (row + 1) // count

    @staticmethod
    def _value(value: Any) -> Any:  # noqa: ANN401 - of any array
        return str(value) if isinstance(value, np.str_) else value

    def _loaded(self) -> dict[str, npt.NDArray[Any]]:
        try:
            arrays = self._array() if self._is_array() else self._members()
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
            said = str(error).partition("\n")[0]
            if "pickle" in said or "Python objects" in said:
                raise ValueError(
                    f"{self._path} has Python objects, which are not unpickled: save numbers or "
                    "text"
                ) from None
            raise CorruptionError(
                f"{self._path} is damaged, or no whole file of NumPy's: {said}"
            ) from None
        if not arrays:
            raise ValueError(f"{self._path} has no arrays: there is nothing to pack")
        return arrays

    def _is_array(self) -> bool:
        with _places.open_input(self._path) as file:
            return file.read(len(_MAGIC)) == _MAGIC

    def _array(self) -> dict[str, npt.NDArray[Any]]:
        array = self._opened()
        if array.offset + array.nbytes != self.size_bytes:
            raise CorruptionError(f"{self._path} {_MORE}")
        return {_COLUMN: array}

    def _opened(self) -> Any:  # noqa: ANN401 - an array, of which rows are read
        if not _places.is_address(self._path):
            return np.load(self._path, mmap_mode="r", allow_pickle=False)
        with _places.open_input(self._path) as file:
            version = np.lib.format.read_magic(file)
            headers = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            if version not in headers:
                raise ValueError(f"{self._path} is of version {version}: download it")
            shape, by_columns, dtype = headers[version](file)
            if dtype.hasobject:
                raise ValueError("Python objects")
            if by_columns and len(shape) > 1:
                raise ValueError(f"{self._path} has its columns one by one: download it")
            return _places.array(self._path, dtype, file.tell(), shape)

    def _members(self) -> dict[str, npt.NDArray[Any]]:
        found: dict[str, npt.NDArray[Any]] = {}
        with _places.open_input(self._path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if min((info.header_offset for info in members), default=0):
                raise CorruptionError(f"{self._path} is behind another file, or has several joined")
            for info in members:
                name = info.filename.removesuffix(".npy")
                if name in found:
                    raise CorruptionError(f"{self._path} has two arrays called '{name}'")
                found[name] = self._member(archive, info)
        return found

    def _member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
        with archive.open(info) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise CorruptionError(f"{self._path}: '{info.filename}' in it is no array")
        with archive.open(info) as file:
            array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):
                raise CorruptionError(f"{self._path}: '{info.filename}' {_MORE}")
        return array

    def _type_of(self, name: str, array: npt.NDArray[Any]) -> str:
        if array.ndim == 0:
            raise ValueError(f"{self._path}: '{name}' is one number, and has no rows")
        shape = array.shape[1:]
        kind = "utf8" if array.dtype.kind == "U" and not shape else ""
        kind = kind or _TYPES.get(array.dtype.newbyteorder("="), "")
        if not kind or 0 in shape:
            raise ValueError(
                f"{self._path}: '{name}' has {array.dtype} of shape {array.shape}, which records "
                "cannot hold: save it as numbers, or leave it out with --drop"
            )
        return f"{kind}[{','.join(map(str, shape))}]" if shape else kind
