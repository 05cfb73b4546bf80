"""Records with what Arrow's types stand for in words: dates, times, decimals."""

from collections.abc import Iterator
from typing import Any

from ffrecord import Batch
from ffrecord._tables.formats import pyarrow
from ffrecord.errors import CorruptionError


def in_words(batch: Batch) -> Iterator[Any]:
    """The samples of a batch; dates and the like, of which the file has integers, are text."""
    texts = {name: _texts(batch, name) for name in named_types(batch)}
    for row, sample in enumerate(batch):
        yield {**sample, **{name: text[row] for name, text in texts.items()}} if texts else sample


def column_in_words(batch: Batch, name: str) -> Any:  # noqa: ANN401 - as a batch has it
    """As `in_words`, for one column."""
    return _texts(batch, name) if name in named_types(batch) else batch[name]


def named_types(batch: Batch) -> dict[str, Any]:
    """The columns whose stored values are not what they mean, and their types of Arrow.

    None without pyarrow, or if the types are damaged: the stored values are all there is then.
    """
    try:
        from ffrecord._tables.arrow_reading import schema_of
        from ffrecord._tables.arrow_types import fits, is_itself

        schema = schema_of(batch.logical.arrow_schemas()[:1])
    except (ImportError, CorruptionError):
        return {}
    found = {}
    for name in batch.columns:
        place = -1 if schema is None else schema.get_field_index(name)
        kind = None if place < 0 else schema.field(place).type
        if kind is not None and fits(batch.kind(name), kind) and not is_itself(kind):
            found[name] = kind
    return found


def is_single(kind: Any) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether a value of that type is one word."""
    return not pyarrow().types.is_nested(_plain_type(kind))


def in_the_same_words(text: str, kind: Any) -> bytes:  # noqa: ANN401
    """As `in_words` writes the value of that type that `text` is in any spelling.

    ValueError if it is none. Types that Arrow does not read from text have one spelling.
    """
    pa, kind = pyarrow(), _plain_type(kind)
    if pa.types.is_duration(kind):
        return str(int(text)).encode()
    if not pa.types.is_fixed_size_binary(kind):
        try:
            if pa.types.is_time(kind):  # Arrow reads these only behind a day.
                day = pa.array([f"1970-01-01 {text}"]).cast(pa.timestamp("ns"))
                value = day.cast(pa.time64("ns")).cast(kind)
            else:
                value = pa.array([text]).cast(kind)
            return str(_words(value)[0]).encode()
        except pa.ArrowNotImplementedError:
            pass
    return text.encode(errors="surrogateescape")


def _texts(batch: Batch, name: str) -> list[Any]:
    from ffrecord._tables.arrow_reading import array_of

    return _words(array_of(batch, name))


def _plain_type(kind: Any) -> Any:  # noqa: ANN401
    """Without what only says how values are stored or called."""
    pa = pyarrow()
    while isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind.storage_type
    return kind


def _words(array: Any) -> list[Any]:  # noqa: ANN401
    """The values of an array of Arrow, in the form of samples; named ones, at any depth, as text.

    Arrow writes the text: Python's dates and times have neither nanoseconds nor all years.
    """
    from ffrecord._tables.arrow_types import is_itself

    pa = pyarrow()
    types = pa.types
    while isinstance(array, pa.ExtensionArray | pa.DictionaryArray):
        is_coded = isinstance(array, pa.DictionaryArray)
        array = array.dictionary_decode() if is_coded else array.storage
    kind = array.type
    if types.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*(_words(array.field(i)) for i in range(len(names))), strict=True)
        valid = array.is_valid().to_pylist()
        return [
            dict(zip(names, row, strict=True)) if is_there else None
            for row, is_there in zip(rows, valid, strict=True)
        ]
    if types.is_nested(kind):
        return [_words(each.values) if each.is_valid else None for each in array]
    if is_itself(kind) or types.is_fixed_size_binary(kind):
        values: list[Any] = array.to_pylist()
        return values
    if types.is_duration(kind):  # Not every version of Arrow writes these as text.
        array = array.cast(pa.int64())
    try:
        values = array.cast(pa.string()).to_pylist()
    except pa.ArrowNotImplementedError:  # Such as intervals, which are tuples.
        values = [None if each is None else list(each) for each in array.to_pylist()]
    return values
