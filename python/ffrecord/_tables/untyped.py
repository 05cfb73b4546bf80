"""Arrow's schemas with columns that have no type yet: all their values are None so far."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ffrecord._tables.formats import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa


def untyped(schema: "pa.Schema") -> list[str]:
    """The names of columns that lack a type, or have parts that lack one."""
    return [field.name for field in schema if _is_untyped(field.type)]


def _is_untyped(kind: "pa.DataType") -> bool:
    parts = (kind.field(place).type for place in range(kind.num_fields))
    return bool(pyarrow().types.is_null(kind)) or any(map(_is_untyped, parts))


def joint_schema(schemas: Sequence["pa.Schema"]) -> "pa.Schema":
    """The schema of rows of all of them: each column has the type that it has anywhere.

    Raises:
        ValueError: a column has different types, or is missing somewhere.
    """
    joint, *others = schemas
    for schema in others:
        if schema.names != joint.names:
            raise ValueError(f"the columns of some rows, {schema.names}, are not {joint.names}")
        fields = []
        for one, other in zip(joint, schema, strict=True):
            kind = _joint(one.type, other.type)
            if kind is None:
                raise ValueError(
                    f"column {one.name!r} is {one.type} in some rows and {other.type} in others;"
                    " cast it to one type"
                )
            fields.append(one.with_type(kind).with_nullable(one.nullable or other.nullable))
        joint = pyarrow().schema(fields, joint.metadata)
    return joint


def with_nulls_of(schema: "pa.Schema", others: Sequence["pa.Schema"]) -> "pa.Schema":
    """The schema, with room for nulls where one of the others has it; all have the same columns."""
    fields = list(schema)
    for other in others:
        for place, (own, its) in enumerate(zip(fields, other, strict=True)):
            kind = (
                _joint(own.type, its.type) or own.type
            )  # Spelled otherwise, such as large_string.
            fields[place] = own.with_type(kind).with_nullable(own.nullable or its.nullable)
    return pyarrow().schema(fields, schema.metadata)


def _joint(one: "pa.DataType", other: "pa.DataType") -> "pa.DataType | None":
    """The type of values of both; None if they differ in more than parts without a type."""
    pa = pyarrow()
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if one.id != other.id or one.num_fields != other.num_fields:
        return None
    if types.is_struct(one):
        fields = [_joint_field(*pair) for pair in zip(one, other, strict=True)]
        return None if any(each is None for each in fields) else pa.struct(fields)
    if types.is_map(one):
        pair = [_joint_field(one.key_field, other.key_field)]
        pair.append(_joint_field(one.item_field, other.item_field))
        return None if any(each is None for each in pair) else pa.map_(*pair)
    if types.is_list(one) or types.is_large_list(one) or types.is_fixed_size_list(one):
        item = _joint_field(one.value_field, other.value_field)
        if item is None or getattr(one, "list_size", 0) != getattr(other, "list_size", 0):
            return None
        if types.is_fixed_size_list(one):
            return pa.list_(item, one.list_size)
        return pa.large_list(item) if types.is_large_list(one) else pa.list_(item)
    return None


def _joint_field(one: "pa.Field", other: "pa.Field") -> "pa.Field | None":
    kind = _joint(one.type, other.type)
    if kind is None or one.name != other.name:
        return None
    return one.with_type(kind).with_nullable(one.nullable or other.nullable)
