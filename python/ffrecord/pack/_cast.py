"""Whether values are still there after a cast of pyarrow, which forgets some without a word."""

from typing import Any

import numpy as np

from ffrecord._tables.arrow_types import is_bf16, is_list, meaning_of, plain_type
from ffrecord._tables.formats import pyarrow

# A float holds each number of fewer digits, and none of more.
_WHOLE = r"^[+-]?[0-9]{3,309}$"


def check_kept(array: Any, made: Any, field: Any) -> None:  # noqa: ANN401 - pyarrow has no types
    """Check that a cast, `made` of `array` for a column of that field, has kept every value.

    A text that was read as a number, and a number that was written as text, are kept; a fraction
    may be rounded to a float, but no whole number.

    Raises:
        ArrowInvalid: it has not.
    """
    pa, types = pyarrow(), pyarrow().types
    source, wanted = leaf_type(array.type), leaf_type(made.type)
    if types.is_floating(wanted) and _has_infinity(made) and not _has_infinity(array):
        raise pa.ArrowInvalid("a number is too large")
    if types.is_floating(wanted) and _is_text(source):
        _check_whole_numbers(array, made, field)
    if meaning_of(array.type) == meaning_of(made.type) or _is_text(source) or _is_text(wanted):
        return
    if types.is_null(source) or (types.is_floating(source) and types.is_floating(wanted)):
        return
    if is_bf16(field) and any(map(_is_cut_in_bf16, _chunks(made))):
        raise pa.ArrowInvalid("a value would be changed")
    if types.is_decimal(source) and types.is_integer(wanted):
        return  # pyarrow checks it, and has no room for all integers on the way back.
    if types.is_timestamp(source) and types.is_time(wanted):
        raise pa.ArrowInvalid("the date would be lost")
    if types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    try:
        back = made.cast(array.type)
    except pa.ArrowInvalid:
        back = None
    if back is None or not _without_nan(back).equals(_without_nan(array)):
        raise pa.ArrowInvalid("a value would be changed")


def _check_whole_numbers(array: Any, made: Any, field: Any) -> None:  # noqa: ANN401
    """Check that whole numbers in texts are what they were as floats."""
    pa = pyarrow()
    import pyarrow.compute as pc

    for texts, floats in zip(_chunks(array), _chunks(made), strict=True):
        is_whole = pc.fill_null(pc.match_substring_regex(texts, _WHOLE), False)
        numbers = floats.filter(is_whole)
        if is_bf16(field) and _is_cut_in_bf16(numbers):
            raise pa.ArrowInvalid("a whole number would be changed")
        for text, number in zip(
            texts.filter(is_whole).to_pylist(), numbers.to_pylist(), strict=True
        ):
            if int(text) != number:
                raise pa.ArrowInvalid(f"the number {text:.40} would be changed")


def shown_field(field: Any) -> str:  # noqa: ANN401 - pyarrow has no types
    """The type of a column as errors say it."""
    return f"{field.type} of values of bf16" if is_bf16(field) else str(field.type)


def leaf_type(kind: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The type of the values in lists of any kind, plain."""
    kind = plain_type(kind)
    while pyarrow().types.is_fixed_size_list(kind) or is_list(kind):
        if pyarrow().types.is_map(kind):
            return kind
        kind = plain_type(kind.value_type)
    return kind


def _is_text(kind: Any) -> bool:  # noqa: ANN401
    types = pyarrow().types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return types.is_fixed_size_binary(kind) or any(test(kind) for test in tests)


def _chunks(array: Any) -> list[Any]:  # noqa: ANN401
    """The arrays of numbers in it, without the lists around them."""
    chunks = array.chunks if hasattr(array, "chunks") else [array]
    while chunks and (
        pyarrow().types.is_fixed_size_list(chunks[0].type) or is_list(chunks[0].type)
    ):
        chunks = [chunk.flatten() for chunk in chunks]
    return chunks


def _has_infinity(array: Any) -> bool:  # noqa: ANN401
    if not pyarrow().types.is_floating(leaf_type(array.type)):
        return False
    import pyarrow.compute as pc

    return any(pc.any(pc.is_inf(c.cast(pyarrow().float64()))).as_py() for c in _chunks(array))


def _is_cut_in_bf16(array: Any) -> bool:  # noqa: ANN401
    """Whether a number, of f32, has more digits than bf16 holds."""
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    return bool((numbers.astype(np.float32).view(np.uint32) & 0xFFFF).any())


def _without_nan(array: Any) -> Any:  # noqa: ANN401
    """For comparisons: NaN is not equal to itself."""
    if not pyarrow().types.is_floating(array.type):
        return array
    import pyarrow.compute as pc

    return pc.if_else(pc.is_nan(array), pyarrow().scalar(None, array.type), array)
