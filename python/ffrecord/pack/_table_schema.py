"""The columns of a source of tables: types of Arrow, and the layout where these leave a choice."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from ffrecord._tables.arrow_types import meaning_of
from ffrecord._tables.arrow_writing import Encoder, is_arrow_schema
from ffrecord._tables.formats import pyarrow
from ffrecord._tables.nested import is_name, layout_of, stored
from ffrecord._tables.schema import Column, Kind, columns_of, parse
from ffrecord.pack._cast import shown_field


class TableSchema:
    """Columns with types of Arrow, which files keep; equal if values mean the same.

    Lists of a fixed size some of whose items are null, and columns whose names have no room for a
    mark of nulls, are stored as their values need it. That is known once all rows were looked at.
    """

    def __init__(
        self,
        arrow: Any,  # noqa: ANN401 - pyarrow has no types
        layout: tuple[Column, ...] | None = None,
        found: Any = None,  # noqa: ANN401
    ) -> None:
        """Take what is known.

        Args:
            arrow: a schema of pyarrow.
            layout: what stores it, if that is not what follows from it.
            found: the schema that the source has before columns are chosen and cast, where it was
                found in the rows.

        Raises:
            ValueError: records cannot hold a column; its name is in the message.
        """
        self.arrow = arrow
        self.layout = layout
        self.found = found
        parse(self.encoder().schema)  # Checks how many there are.

    def encoder(self) -> Encoder:
        """A new encoder of rows."""
        return Encoder(self.arrow, columns=self.layout)

    def names_to_look_at(self) -> list[str]:
        """Columns whose layout depends on the rows."""
        fields = list(self.arrow)
        return [f.name for f in fields if not is_name(f.name) or "fixed_size_list" in str(f.type)]

    def laid_out_for(self, tables: Iterator[Any]) -> "TableSchema":
        """Choose the layout for these tables, which have the columns to look at."""
        own: dict[str, Kind] = {}
        for table in tables:
            for name, kind in Encoder(table.schema, table).kinds.items():
                own[name] = _joined(own[name], kind) if name in own else kind
        if not own:
            return self
        kinds = self.encoder().kinds
        columns = tuple(c for name in kinds for c in stored(name, own.get(name, kinds[name])))
        return TableSchema(self.arrow, columns, self.found)

    def items(self) -> Iterator[tuple[str, str]]:
        """Name and type of each column, for errors."""
        return ((field.name, shown_field(field)) for field in self.arrow)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        layout = None if self.layout is None else [list(c[:3]) for c in self.layout]
        found = None if self.found is None else _as_text(self.found)
        return {"arrow": _as_text(self.arrow), "layout": layout, "found": found}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "TableSchema":
        """The schema that `as_json` was called of."""
        layout, found = value["layout"], value["found"]
        if layout is not None:
            layout = tuple(Column(name, kind, tuple(shape)) for name, kind, shape in layout)
        return TableSchema(_from_text(value["arrow"]), layout, found and _from_text(found))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TableSchema) or self.layout != other.layout:
            return False
        pairs = [[(f.name, meaning_of(f.type)) for f in each.arrow] for each in (self, other)]
        return pairs[0] == pairs[1]

    __hash__ = None  # type: ignore[assignment]


def kinds_of(schema: Any) -> Mapping[str, Kind]:  # noqa: ANN401 - of any source
    """The kinds of columns that are nested, or of tables, as the records of a source have them."""
    if isinstance(schema, TableSchema):
        return schema.encoder().kinds
    if is_arrow_schema(schema):
        return Encoder(schema).kinds
    layout = layout_of(columns_of(parse(schema)))
    return {} if layout is None else layout.nested


def _as_text(schema: Any) -> str:  # noqa: ANN401
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _from_text(text: str) -> Any:  # noqa: ANN401
    pa = pyarrow()
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _joined(one: Kind, other: Kind) -> Kind:
    """The layout that has room for what either has room for."""
    nullable = one.nullable or other.nullable
    if one.type != other.type or one.shape != other.shape:  # One is numbers, the other is lists.
        kept = one if one.type == "list" else other
        return Kind(kept.type, kept.shape, nullable, kept.fields)
    fields = tuple(
        (name, _joined(mine, its))
        for (name, mine), (_, its) in zip(one.fields, other.fields, strict=True)
    )
    return Kind(one.type, one.shape, nullable, fields)
