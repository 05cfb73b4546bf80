"""Parquet files, the format of Hugging Face's datasets; read by pyarrow."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ffrecord.errors import CorruptionError
from ffrecord.pack._ahead import ahead
from ffrecord.pack._source import Progressed, Source, SourceOptions, needed, picked

_MAGIC = b"PAR1"
_ROWS = 256
# What `datasets` calls an image or a sound: the file's bytes, and the path that it had.
_FILE_FIELDS = ["bytes", "path"]


def is_parquet(path: str) -> bool:
    """Recognised by its content."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


class ParquetSource(Source):
    """One column per column of the rows, in their order.

    Numbers and fixed-size lists of numbers keep their type; strings become utf8; binary becomes
    bytes, and so do lists of numbers of any length: little-endian, with their width. A struct of
    `bytes` and `path`, in which `datasets` stores images, becomes its bytes. Other columns raise an
    error that names them, unless `columns` leaves them out; so do rows without a value.
    """

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Read the schema; see `open_source` for arguments and errors."""
        options.allow(path, "a Parquet file", "columns")
        self.skipped = Counter()
        self.size_bytes = os.stat(path).st_size
        self._path = path
        self._pa = needed("pyarrow", "a Parquet file")
        parquet = needed("pyarrow.parquet", "a Parquet file")
        with self._reading():
            self._file = parquet.ParquetFile(path, page_checksum_verification=True)
            arrow = self._file.schema_arrow
        if twice := [name for name, count in Counter(arrow.names).items() if count > 1]:
            raise ValueError(f"{path} has several columns called '{twice[0]}': rename them")
        types = {field.name: field.type for field in arrow}
        own = {name: self._type_of(kind) for name, kind in types.items()}
        self.schema = picked(own, options.columns, path)
        for name, kind in self.schema.items():
            if not kind:
                raise ValueError(
                    f"{path}: the column '{name}' is {types[name]}, which is not packed: name the "
                    "others with --column"
                )

        self.types = {
            name: f"list of {self._type_of(types[name].value_type)}"
            for name in self.schema
            if self._is_list(types[name])
        }
        self.classes = self._class_names(arrow.metadata or {})

    def _class_names(self, metadata: Mapping[bytes, bytes]) -> tuple[str, ...]:
        """The names of labels that `datasets` stores, if there is one column of labels."""
        try:
            features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
            found = [
                tuple(map(str, feature["names"]))
                for name, feature in features.items()
                if name in self.schema and feature.get("_type") == "ClassLabel"
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return ()
        return found[0] if len(found) == 1 else ()

    def samples(self) -> Iterator[Progressed]:
        """Yield the rows.

        Raises:
            CorruptionError: the file is damaged.
            ValueError: a row lacks a value.
        """
        yield from ahead(self._samples())

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Convert pyarrow's errors, which have many types and do not name the file."""
        try:
            yield
        except MemoryError:
            raise
        except NotImplementedError as error:
            raise ValueError(f"{self._path} cannot be read by pyarrow: {error}") from error
        except OSError as error:
            if error.errno is not None:  # Else it is pyarrow's word for damage.
                raise
            raise self._damaged(error) from error
        except (self._pa.ArrowException, UnicodeDecodeError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CorruptionError:
        said = str(error).partition("\n")[0]
        return CorruptionError(f"{self._path} is damaged, or no whole Parquet file: {said}")

    def _samples(self) -> Iterator[Progressed]:
        total, done = self._file.metadata.num_rows, 0
        for columns in self._columns():
            for row in zip(*columns, strict=True):
                done += 1
                done_bytes = self.size_bytes * done // max(total, done)
                yield dict(zip(self.schema, row, strict=True)), done_bytes
        if done != total:
            raise CorruptionError(f"{self._path} has {done} rows, and says that it has {total}")

    def _columns(self) -> Iterator[list[Any]]:
        """The values of some rows at a time, by column."""
        done = 0
        with self._reading():
            for batch in self._file.iter_batches(batch_size=_ROWS, columns=list(self.schema)):
                yield [self._values(name, batch.column(name), done) for name in self.schema]
                done += len(batch)

    def _type_of(self, kind: Any) -> str:  # noqa: ANN401 - pyarrow has no types for mypy
        types = self._pa.types
        if types.is_dictionary(kind):
            return self._type_of(kind.value_type)
        if types.is_boolean(kind):
            return "bool"
        if types.is_integer(kind) or types.is_floating(kind):
            letter = "u" if types.is_unsigned_integer(kind) else "i"
            return f"{'f' if types.is_floating(kind) else letter}{kind.bit_width}"
        if types.is_string(kind) or types.is_large_string(kind):
            return "utf8"
        if types.is_binary(kind) or types.is_large_binary(kind):
            return "bytes"
        if types.is_struct(kind) and sorted(field.name for field in kind) == _FILE_FIELDS:
            return self._type_of(kind.field("bytes").type)
        if self._is_list(kind):
            return "bytes" if self._is_number(kind.value_type) else ""
        if types.is_fixed_size_list(kind) and self._is_number(kind.value_type):
            return f"{self._type_of(kind.value_type)}[{kind.list_size}]"
        return ""

    def _is_list(self, kind: Any) -> bool:  # noqa: ANN401
        types = self._pa.types
        return bool(types.is_list(kind) or types.is_large_list(kind))

    def _is_number(self, kind: Any) -> bool:  # noqa: ANN401
        types = self._pa.types
        return bool(types.is_integer(kind) or types.is_floating(kind))

    def _values(self, name: str, array: Any, first_row: int) -> Any:  # noqa: ANN401
        """One value for each row."""
        types = self._pa.types
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()  # Either part may lack a value.
        self._check_whole(name, array, first_row)
        if types.is_struct(array.type):
            array = array.field("bytes")
            self._check_whole(f"{name}.bytes", array, first_row)
        if self._is_list(array.type):
            rows = enumerate(array, first_row)
            return [self._numbers(name, value.values, row, 0).tobytes() for row, value in rows]
        if types.is_fixed_size_list(array.type):
            size = array.type.list_size
            return self._numbers(name, array.flatten(), first_row, size).reshape(-1, size)
        if self.schema[name] in ("utf8", "bytes"):
            return self._list(name, array, first_row)
        return array.to_numpy(zero_copy_only=False)

    def _list(self, name: str, array: Any, first_row: int) -> list[Any]:  # noqa: ANN401
        try:
            return list(array.to_pylist())
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self._path}: the column '{name}' is not UTF-8 in one of the rows from "
                f"{first_row} to {first_row + _ROWS - 1}: {error}; name other columns with --column"
            ) from None

    def _numbers(self, name: str, array: Any, first_row: int, in_row: int) -> np.ndarray[Any, Any]:  # noqa: ANN401
        self._check_whole(name, array, first_row, in_row)
        return np.asarray(array.to_numpy(zero_copy_only=False))

    def _check_whole(self, name: str, array: Any, first_row: int, in_row: int = 1) -> None:  # noqa: ANN401
        """Check that there is no null; so many values are in a row, all of them for 0."""
        if array.null_count:
            place = int(array.is_null().to_numpy(zero_copy_only=False).argmax())
            raise ValueError(
                f"{self._path}: the column '{name}' lacks a value in row "
                f"{first_row + (place // in_row if in_row else 0)}: fill it, or name other columns "
                "with --column"
            )
