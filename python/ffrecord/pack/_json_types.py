"""The types of JSON values: what a column must be to hold each of them exactly."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ffrecord._tables.formats import pyarrow

_EXACT = 1 << 53
# Fields of one object: a file has at most 1024 stored columns, two for each that may be null.
_FIELDS_MAX = 500
_DEPTH_MAX = 30


class ConflictingTypesError(ValueError):
    """Values of one column that no type holds; the message begins with the column."""


class UnsureError(Exception):
    """pyarrow may have changed a value: the lines must be looked at one by one."""


class JsonType:
    """null, bool, int, float, text, list or object, with what is in it."""

    __slots__ = ("fields", "high", "item", "kind", "low")

    def __init__(
        self,
        kind: str = "null",
        low: int = 0,
        high: int = 0,
        item: "JsonType | None" = None,
        fields: "dict[str, JsonType] | None" = None,
    ) -> None:
        """Take its parts; `low` and `high` are those of the integers seen, also among floats."""
        self.kind = kind
        self.low, self.high = low, high
        self.item = item
        self.fields = fields or {}

    def joined(self, other: "JsonType", name: str) -> "JsonType":
        """The type that holds the values of both.

        Raises:
            ConflictingTypesError: there is none.
        """
        if other.kind == "null":
            return self
        if self.kind == "null":
            return other
        low, high = min(self.low, other.low), max(self.high, other.high)
        if {self.kind, other.kind} <= {"int", "float"}:
            kind = "int" if self.kind == other.kind == "int" else "float"
            if kind == "float" and max(high, -low) > _EXACT:
                number = high if high > _EXACT else low
                raise ConflictingTypesError(
                    f"'{name}' has floats, and the integer {number}, which no float is exactly"
                )
            return JsonType(kind, low, high)
        if self.kind != other.kind:
            raise ConflictingTypesError(f"'{name}' was {self.kind} before, and is {other.kind}")
        if self.kind == "list":
            assert self.item is not None
            assert other.item is not None
            return JsonType("list", item=self.item.joined(other.item, f"{name}[]"))
        if self.kind == "object":
            return JsonType("object", fields=joined_fields(self.fields, other.fields, name))
        return self

    def arrow(self, name: str) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The type of Arrow.

        Raises:
            ConflictingTypesError: there is none; the message begins with the column.
        """
        pa = pyarrow()
        if self.kind == "int":
            if self.low >= -(1 << 63) and self.high < 1 << 63:
                return pa.int64()
            if self.low >= 0 and self.high < 1 << 64:
                return pa.uint64()
            number = self.high if self.high >= 1 << 63 else self.low
            beside = ", beside negative ones" if -(1 << 63) <= self.low < 0 else ""
            raise ConflictingTypesError(f"'{name}' has the integer {number}{beside}: too large")
        if self.kind == "list":
            assert self.item is not None
            return pa.list_(self.item.arrow(f"{name}[]"))
        if self.kind == "object":
            if not self.fields:
                raise ConflictingTypesError(f"'{name}' has empty objects only, which have no type")
            return pa.struct([(key, t.arrow(f"{name}.{key}")) for key, t in self.fields.items()])
        simple = {"null": pa.string, "text": pa.string, "bool": pa.bool_, "float": pa.float64}
        return simple[self.kind]()


def joined_fields(
    one: Mapping[str, JsonType], other: Mapping[str, JsonType], name: str
) -> dict[str, JsonType]:
    """The fields of objects, from those of some of them; see `JsonType.joined`."""
    found = dict(one)
    for key, kind in other.items():
        below = f"{name}.{key}" if name else key
        found[key] = found[key].joined(kind, below) if key in found else kind
    if len(found) > _FIELDS_MAX:
        raise ConflictingTypesError(
            f"'{name or '*'}' has more than {_FIELDS_MAX} different fields, as if their names were "
            "values"
        )
    return found


def type_of_value(value: Any, name: str, depth: int = 0) -> JsonType:  # noqa: ANN401 - any JSON
    """The type of one value; see `JsonType.joined`."""
    if depth > _DEPTH_MAX:
        raise ConflictingTypesError(f"'{name}' is nested more than {_DEPTH_MAX} deep")
    if value is None:
        return JsonType()
    if isinstance(value, bool):
        return JsonType("bool")
    if isinstance(value, int):
        return JsonType("int", min(value, 0), max(value, 0))
    if isinstance(value, float):
        return JsonType("float")
    if isinstance(value, str):
        if not value.isascii():
            check_text(value, name)
        return JsonType("text")
    if isinstance(value, list):
        kinds = set(map(type, value)) if depth < _DEPTH_MAX else None
        if kinds == {float}:  # Outlines and embeddings: no look at each number.
            return JsonType("list", item=JsonType("float"))
        if kinds == {int}:
            return JsonType("list", item=JsonType("int", min(0, *value), max(0, *value)))
        item = JsonType()
        for each in value:
            item = item.joined(type_of_value(each, f"{name}[]", depth + 1), f"{name}[]")
        return JsonType("list", item=item)
    for key in value:
        check_text(key, name)
    fields = {key: type_of_value(v, f"{name}.{key}", depth + 1) for key, v in value.items()}
    return JsonType("object", fields=fields)


def float_of(text: str) -> float:
    """The number of a text, for a parser of JSON."""
    number = float(text)
    if math.isinf(number):
        raise ConflictingTypesError(f"the number {text:.40} is too large")
    return number


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of its pairs, for a parser of JSON; none of them is lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ConflictingTypesError(f"the key '{twice}' is there twice")
    return found


def check_text(text: str, name: str) -> None:
    """Raise ConflictingTypesError for text that no UTF-8 stands for."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConflictingTypesError(f"'{name}' has half of a character ({text!r:.40})") from None


def type_of_array(array: Any, depth: int = 0) -> JsonType:  # noqa: ANN401 - pyarrow has no types
    """The type of the values that pyarrow read without a schema.

    Raises:
        UnsureError: it may have taken an integer for a float, or is nested too deeply.
    """
    if depth > _DEPTH_MAX:
        raise UnsureError
    pa = pyarrow()
    import pyarrow.compute as pc

    types, kind = pa.types, array.type
    if types.is_null(kind):
        return JsonType()
    if types.is_boolean(kind):
        return JsonType("bool")
    if types.is_integer(kind):
        found = pc.min_max(array).as_py()
        return JsonType("int", min(found["min"] or 0, 0), max(found["max"] or 0, 0))
    if types.is_floating(kind):
        found = pc.min_max(array).as_py()
        if max(found["max"] or 0, -(found["min"] or 0)) >= _EXACT:
            raise UnsureError
        # An integer among them is at most this large, and exact.
        return JsonType("float")
    if types.is_list(kind):
        return JsonType("list", item=type_of_array(array.flatten(), depth + 1))
    if types.is_struct(kind):
        parts = array.flatten()
        names = [field.name for field in kind]
        pairs = zip(names, parts, strict=True)
        return JsonType("object", fields={n: type_of_array(part, depth + 1) for n, part in pairs})
    return JsonType("text")  # Dates, too, are text in JSON.
