"""Types of Arrow, and what stores their values."""

import math
from functools import lru_cache
from typing import Any

from ffrecord._tables.formats import pyarrow
from ffrecord._tables.schema import Column, Kind

# pyarrow has no types for mypy: its objects are Any.
FIXED = {
    **{"bool": "bool", "halffloat": "f16", "float": "f32", "double": "f64"},
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}

# The storage of bf16, which Arrow lacks, in a field that is marked as one: bits, or numbers.
BF16_STORAGE = ("u16", "f32", "f64")
_MARK = "ffrecord.type"


def is_bf16(field: Any) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether the numbers of a field, or in its lists, are marked as bf16, as readers do it."""
    return bool((field.metadata or {}).get(_MARK.encode(), b"").startswith(b"bf16"))


def mark_of(kind: Kind) -> dict[str, str] | None:
    """The metadata of the field of a kind, if numbers in it are bf16."""
    while kind.type == "list":
        kind = kind.item
    return {_MARK: kind.column("").spelling} if kind.type == "bf16" else None


def plain_type(kind: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The type that stores values: without extensions, dictionaries and views."""
    pa = pyarrow()
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    view = of_view(kind)
    return kind if view is None else view


def of_view(kind: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The type with the values of a view, which pyarrow has from release 16 on; None of others."""
    pa = pyarrow()
    for name, made in (("string", pa.large_string), ("binary", pa.large_binary)):
        is_view = getattr(pa.types, f"is_{name}_view", None)
        if is_view is not None and is_view(kind):
            return made()
    return None


def dictionary_trouble(kind: Any) -> str | None:  # noqa: ANN401 - pyarrow has no types
    """Why a type cannot be made again of values, if it or its storage is a dictionary; or None."""
    pa = pyarrow()
    while isinstance(kind, pa.BaseExtensionType):  # Those of users have no hash.
        kind = kind.storage_type
    return _trouble_of(kind) if pa.types.is_dictionary(kind) else None


@lru_cache(maxsize=256)
def _trouble_of(kind: Any) -> str | None:  # noqa: ANN401 - pyarrow has no types
    """Why a dictionary cannot be made again of values; or None."""
    pa = pyarrow()
    if kind.ordered:
        return "the order of its dictionary would be lost: cast it to the type of its values"
    try:
        pa.array([], kind.value_type).dictionary_encode()
    except pa.ArrowNotImplementedError:
        return "pyarrow makes no dictionaries of such values: cast it to their type"
    return dictionary_trouble(kind.value_type)


def leaf_of(kind: Any) -> tuple[str, tuple[int, ...]] | None:  # noqa: ANN401 - no types
    """The type and shape in a schema of a type without children; None if it has none."""
    types = pyarrow().types
    if (name := FIXED.get(str(kind))) is not None:
        return name, ()
    if types.is_string(kind) or types.is_large_string(kind):
        return "utf8", ()
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "bytes", ()
    if types.is_temporal(kind) and not types.is_interval(kind):
        return f"i{kind.bit_width}", ()
    if types.is_fixed_size_binary(kind) or types.is_decimal(kind) or types.is_interval(kind):
        width = kind.bit_width // 8
        return ("u8", (width,)) if width else None
    return None


def is_list(kind: Any) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether its values are lists of any length, maps among them."""
    types = pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind))


def entry_of(kind: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The field of the items of lists, or of the pairs of a map."""
    pa = pyarrow()
    if not pa.types.is_map(kind):
        return kind.value_field
    # Whatever its pairs call them: Arrow's messages do not keep other names than these.
    pair = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    return pa.field("entries", pa.struct(pair), nullable=False)


def fits(kind: Kind, wanted: Any) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether values of that kind can be handed out as that type."""
    types = pyarrow().types
    if dictionary_trouble(wanted):
        return False
    wanted = plain_type(wanted)
    if types.is_fixed_size_list(wanted):
        if kind.type == "list":
            return fits(kind.item, wanted.value_type)
        size = 1
        while types.is_fixed_size_list(wanted):
            size *= wanted.list_size
            wanted = plain_type(wanted.value_type)
        leaf = leaf_of(wanted)
        return leaf is not None and _alike(kind, leaf[0], size * math.prod(leaf[1]))
    if is_list(wanted):
        return kind.type == "list" and fits(kind.item, entry_of(wanted).type)
    if types.is_struct(wanted):
        names = [name for name, _ in kind.fields]
        return (
            kind.type == "struct"
            and names == [each.name for each in wanted]
            and all(
                fits(own, each.type) for (_, own), each in zip(kind.fields, wanted, strict=True)
            )
        )
    leaf = leaf_of(wanted)
    return leaf is not None and _alike(kind, leaf[0], math.prod(leaf[1]))


def _alike(kind: Kind, name: str, size: int) -> bool:
    is_type = kind.type == name or (kind.type == "bf16" and name in BF16_STORAGE)
    return is_type and math.prod(kind.shape) == size


def meaning_of(kind: Any) -> str:  # noqa: ANN401 - pyarrow has no types
    """The meaning of values of the type, however they are laid out.

    Units, scales, zones and extensions count; sizes of offsets, views and dictionaries do not.
    """
    pa = pyarrow()
    types = pa.types
    if isinstance(kind, pa.FixedShapeTensorType):
        return f"tensor<{meaning_of(kind.value_type)}, {kind.shape}, {kind.permutation}>"
    if isinstance(kind, pa.BaseExtensionType):
        return f"{kind.extension_name}<{meaning_of(kind.storage_type)}>"
    if types.is_dictionary(kind):
        return meaning_of(kind.value_type)
    kind = plain_type(kind)
    if types.is_fixed_size_list(kind):
        return f"list<{meaning_of(kind.value_type)}>[{kind.list_size}]"
    if is_list(kind):
        name = "map" if types.is_map(kind) else "list"
        return f"{name}<{meaning_of(entry_of(kind).type)}>"
    if types.is_struct(kind):
        return f"struct<{', '.join(f'{each.name!r}: {meaning_of(each.type)}' for each in kind)}>"
    leaf = leaf_of(kind)
    return leaf[0] if leaf is not None and leaf[0] in ("utf8", "bytes") else str(kind)


def is_itself(kind: Any) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether a stored value is the value: no date, decimal or extension that it stands for."""
    pa = pyarrow()
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return isinstance(kind, pa.FixedShapeTensorType) and is_itself(kind.value_type)
    kind = plain_type(kind)
    if types.is_fixed_size_list(kind):
        return is_itself(kind.value_type)
    if is_list(kind):
        return is_itself(entry_of(kind).type)
    if types.is_struct(kind):
        return all(is_itself(each.type) for each in kind)
    return str(kind) in FIXED or (leaf_of(kind) or ("",))[0] in ("utf8", "bytes")


def shown_type(kind: Kind) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The type of values of that kind, where no schema of Arrow says more."""
    pa = pyarrow()
    if kind.type == "list":
        return pa.list_(pa.field("item", shown_type(kind.item), kind.item.nullable))
    if kind.type == "struct":
        return pa.struct(
            [pa.field(n, shown_type(k), k.nullable, mark_of(k)) for n, k in kind.fields]
        )
    if kind.is_text:
        return pa.string() if kind.type == "utf8" else pa.large_binary()
    made = pa.from_numpy_dtype(Column("", "f32" if kind.type == "bf16" else kind.type, ()).dtype)
    for size in reversed(kind.shape):
        made = pa.list_(pa.field("item", made, nullable=False), size)
    return made
