"""Values of types that a program defines, as plain values with a name, and back.

Nothing is imported, looked up or called by a name that a checkpoint tells: an object of such a type
is made only from one that the program has already.
"""

import copy
import dataclasses
import enum
import sys
from typing import Any

from ffrecord.checkpoint._values import Named, NamedKind

_FROM_TORCH = frozenset(("dtype", "device"))


def type_name(kind: type) -> str:
    """The name of a type, with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"


def named_of(value: Any) -> Named | None:  # noqa: ANN401
    """The named value of an enum's member, dataclass, named tuple, dtype or device, or None.

    Its value is taken as it is: the caller checks whether that can be kept.

    Raises:
        TypeError: the member of an enum has neither a name nor a number.
    """
    kind = type(value)
    if kind is Named:
        return Named(value.kind, value.name, value.value)
    if isinstance(value, enum.Enum):
        return Named("enum", type_name(kind), _told_of_member(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return Named("dataclass", type_name(kind), fields_of(value))
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return Named("namedtuple", type_name(kind), fields_of(value))
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype):
        return Named("dtype", "torch.dtype", str(value).removeprefix("torch."))
    if torch is not None and isinstance(value, torch.device):
        return Named("device", "torch.device", str(value))
    return None


def _told_of_member(value: enum.Enum) -> str | int:
    members = type(value).__members__
    if value.name in members:
        return value.name
    if isinstance(value, enum.Flag) and isinstance(value.value, int):
        return value.value  # Flags that are combined.
    raise TypeError(f"{value!r} is no member of {type(value).__name__}")


def fields_of(value: Any) -> dict[str, object]:  # noqa: ANN401
    """The fields of a dataclass or a named tuple."""
    if isinstance(value, tuple):
        return dict(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def kind_of_template(value: Any) -> NamedKind | None:  # noqa: ANN401
    """The kind of named value that must be stored for this place of a state; None: any value."""
    if isinstance(value, enum.Enum):
        return "enum"
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Named):
        return "dataclass"
    if isinstance(value, tuple) and hasattr(type(value), "_fields"):
        return "namedtuple"
    return None


def member_like(template: enum.Enum, told: object) -> enum.Enum:
    """The member of the template's type that a checkpoint tells.

    Raises:
        ValueError: the type has no such member.
    """
    kind = type(template)
    if isinstance(told, str) and told in kind.__members__:
        return kind.__members__[told]
    if isinstance(template, enum.Flag) and type(told) is int:
        return kind(told)
    raise ValueError(f"{kind.__name__} has no member {told!r}")


def with_fields(template: Any, fields: dict[str, object]) -> Any:  # noqa: ANN401
    """A copy of a dataclass or a named tuple with other fields, made without its constructor."""
    if isinstance(template, tuple):
        return type(template)._make(fields.values())  # type: ignore[attr-defined]
    made = copy.copy(template)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def without_template(named: Named) -> object:
    """A dtype or a device of torch, if it is imported; else the named value itself."""
    torch: Any = sys.modules.get("torch")
    if torch is None or named.kind not in _FROM_TORCH or not isinstance(named.value, str):
        return named
    if named.kind == "dtype":
        found = vars(torch).get(named.value)  # Other attributes may be imported when asked for.
        return found if isinstance(found, torch.dtype) else named
    try:
        return torch.device(named.value)
    except RuntimeError:
        return named


def members_in(template: object) -> dict[str, type]:
    """Types of the enums' members in a set, by their names."""
    if not isinstance(template, set | frozenset):
        return {}
    return {type_name(type(each)): type(each) for each in template if isinstance(each, enum.Enum)}


def inside(named: Named) -> object:
    """The parts of a named value, as paths of the state name them."""
    value = named.value
    if named.kind == "tensor" and isinstance(value, dict) and isinstance(value.get("parts"), dict):
        return {**value["parts"], "context": value.get("context")}
    return value
