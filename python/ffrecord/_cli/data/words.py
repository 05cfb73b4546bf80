"""Records with what Arrow's types stand for in words: dates, times, decimals."""

from collections.abc import Iterator
from typing import Any

from ffrecord import Batch
from ffrecord.errors import CorruptionError


def in_words(batch: Batch) -> Iterator[Any]:
    """The samples of a batch; dates and the like, of which the file has integers, are text."""
    texts = {name: _texts(batch, name) for name in named_types(batch)}
    for row, sample in enumerate(batch):
        yield {**sample, **{name: text[row] for name, text in texts.items()}} if texts else sample


def column_in_words(batch: Batch, name: str) -> Any:  # noqa: ANN401 - as a batch has it
    """As `in_words`, for one column."""
    return _texts(batch, name) if name in named_types(batch) else batch[name]


def named_types(batch: Batch) -> dict[str, str]:
    """The columns whose stored values are not what they mean, and their types of Arrow.

    None without pyarrow, or if the types are damaged: the stored values are all there is then.
    """
    try:
        from ffrecord._arrow_reading import schema_of
        from ffrecord._arrow_types import fits, is_itself

        schema = schema_of(batch.logical.arrow_schemas()[:1])
    except (ImportError, CorruptionError):
        return {}
    found = {}
    for name in batch.columns:
        place = -1 if schema is None else schema.get_field_index(name)
        kind = None if place < 0 else schema.field(place).type
        if kind is not None and fits(batch.kind(name), kind) and not is_itself(kind):
            found[name] = str(kind)
    return found


def _texts(batch: Batch, name: str) -> list[Any]:
    from ffrecord._arrow_reading import array_of
    from ffrecord._formats import pyarrow

    pa, array = pyarrow(), array_of(batch, name)
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    try:
        if not pa.types.is_nested(array.type) and not pa.types.is_fixed_size_binary(array.type):
            texts: list[Any] = array.cast(pa.string()).to_pylist()
            return texts
    except pa.ArrowNotImplementedError:
        pass  # Such as durations.
    return [_words(value) for value in array.to_pylist()]


def _words(value: Any) -> Any:  # noqa: ANN401 - of any type
    if isinstance(value, list | tuple):
        return [_words(each) for each in value]
    if isinstance(value, dict):
        return {name: _words(each) for name, each in value.items()}
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
