"""Schemas in Python: `{"image": "bytes", "label": "i64", "box": "f32[4]"}`.

A type is one of bool, u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64, followed by a
shape in brackets unless it is a scalar; or bytes; or utf8. NumPy has no bf16: such a column is
uint16 with the same bits; `ffrecord.torch` makes it `torch.bfloat16`. `values` says what each type
takes.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord

Bytes = npt.NDArray[np.uint8]
# All values of a column: numbers stacked, bytes and text as lists; of a decoder, what it makes.
Values = npt.NDArray[Any] | list[Any]

_TYPE = re.compile(r"(\w+)(?:\[(\d+(?:,\d+)*)\])?")
DTYPES = {
    "bool": "?",
    "u8": "u1",
    "i8": "i1",
    "u16": "<u2",
    "i16": "<i2",
    "u32": "<u4",
    "i32": "<i4",
    "u64": "<u8",
    "i64": "<i8",
    "f16": "<f2",
    "bf16": "<u2",
    "f32": "<f4",
    "f64": "<f8",
}


def names_of(columns: Iterable[str] | None) -> tuple[str, ...] | None:
    """The names of the columns to give out; None for all.

    Raises:
        TypeError: it is one text, whose letters would be taken for names.
    """
    if isinstance(columns, str):
        raise TypeError(f"columns is the text {columns!r}; give a list: columns=[{columns!r}]")
    return None if columns is None else tuple(columns)


@dataclass(frozen=True)
class Kind:
    """The type of a value: one of a schema, "list" of `fields[0]`, or "struct" of `fields`."""

    type: str
    shape: tuple[int, ...] = ()
    nullable: bool = False
    fields: tuple[tuple[str, "Kind"], ...] = ()

    @property
    def item(self) -> "Kind":
        """The type of a list's items."""
        return self.fields[0][1]

    @property
    def is_text(self) -> bool:
        """Whether its values are bytes of any size, or text."""
        return self.type in ("bytes", "utf8")

    @property
    def is_plain(self) -> bool:
        """Whether one column of a schema is enough for it."""
        return not self.nullable and not self.fields

    @property
    def spelling(self) -> str:
        """For people: `i64?` may be missing, `list<i32>`, `struct<w: i64, h: i64?>`."""
        if self.type == "list":
            text = f"list<{self.item.spelling}>"
        elif self.type == "struct":
            text = f"struct<{', '.join(f'{name}: {each.spelling}' for name, each in self.fields)}>"
        else:
            text = self.column("").spelling
        return text + ("?" if self.nullable else "")

    def column(self, name: str) -> "Column":
        """A column of values of this type; of a leaf."""
        return Column(name, self.type, self.shape)


class Column(NamedTuple):
    """One column: its name, the name of its type, and its shape, () for scalars and bytes.

    A column that is nullable, ragged or nested, as tables of Arrow have them, has a `nested` type,
    which `type` spells: `i64?`, `list<utf8>`. The columns that store it are not its user's concern.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    nested: Kind | None = None

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """NumPy's type; None for bytes and utf8, and for nested columns."""
        code = DTYPES.get(self.type)
        return None if code is None else np.dtype(code)

    @property
    def kind(self) -> Kind:
        """The type of its values."""
        return self.nested or Kind(self.type, self.shape)

    @property
    def spelling(self) -> str:
        """The type as a schema spells it: `f32[3,224,224]`."""
        return self.type + (f"[{','.join(map(str, self.shape))}]" if self.shape else "")


def parse(schema: Mapping[str, str] | None) -> _ffrecord.Schema:
    """Check a schema and convert it to the library's own.

    Raises:
        ValueError: a name or a type is wrong.
    """
    columns = []
    for name, spelling in (schema or {}).items():
        match = _TYPE.fullmatch(spelling.replace(" ", ""))
        if match is None:
            raise ValueError(
                f"column '{name}': '{spelling}' is no type; write i64 or f32[3,224], or, for lists "
                "and other types of Arrow, give a schema of pyarrow"
            )
        shape = [int(size) for size in match[2].split(",")] if match[2] else []
        columns.append((name, match[1], shape))
    return _ffrecord.Schema(columns)


def columns_of(schema: _ffrecord.Schema) -> tuple[Column, ...]:
    """The columns of the library's schema."""
    return tuple(Column(*column) for column in schema.columns)
