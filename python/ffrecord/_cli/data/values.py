"""Values of records: short for people, exact for programs."""

import base64
import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord._cli.text import shown
from ffrecord._tables.nested import rows_of
from ffrecord._tables.schema import Column, Kind

_HEX_BYTES = 24
_NUMBERS_SHOWN = 8
_TEXT_MAX = 200
# Characters of text beside other columns.
_BRIEF_MAX = 60
# By the first bytes: what a browser shows as such, and the ending of its files.
_KINDS = (
    (b"\xff\xd8\xff", "image/jpeg", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "image/png", "png"),
    (b"GIF8", "image/gif", "gif"),
    (b"BM", "image/bmp", "bmp"),
    (b"fLaC", "audio/flac", "flac"),
    (b"OggS", "audio/ogg", "ogg"),
    (b"ID3", "audio/mpeg", "mp3"),
    (b"\xff\xfb", "audio/mpeg", "mp3"),
)
_RIFF = {b"WEBP": ("image/webp", "webp"), b"WAVE": ("audio/wav", "wav")}


def media_type(data: bytes) -> tuple[str, str] | None:
    """Media type, and ending of a file's name, of an image or a sound; None for all else."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    for magic, media, ending in _KINDS:
        if data.startswith(magic):
            # Two letters are too few to know a bitmap by: its header has its size, too.
            if ending == "bmp" and int.from_bytes(data[2:6], "little") != len(data):
                return None
            return media, ending
    return None


def text_of(data: bytes) -> str | None:
    """The text that the bytes are in UTF-8; None if they are none, or have control characters."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if all(c in "\t\r\n" or unicodedata.category(c) != "Cc" for c in text) else None


def as_bytes(value: Any) -> bytes:  # noqa: ANN401 - of any column
    """The bytes of a value: of text in UTF-8, of numbers as the file has them."""
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()


def plain(value: Any, column: Column | None = None) -> Any:  # noqa: ANN401
    """The value for JSON: text, numbers, lists, and objects; what is missing is null.

    Bytes that are no UTF-8 are {"base64": ...}. NaN and infinities, for which JSON has no numbers,
    are the strings "nan", "inf" and "-inf". `column` is the one of the value; None for a record
    without columns.
    """
    return _plain(value, Kind("bytes") if column is None else column.kind)


def _plain(value: Any, kind: Kind) -> Any:  # noqa: ANN401
    if value is None or isinstance(value, str):
        return value
    if kind.type == "struct":
        return {name: _plain(value[name], each) for name, each in kind.fields}
    if kind.type == "list":
        return [_plain(each, kind.item) for each in rows_of(value)]
    if kind.is_text or isinstance(value, bytes):
        data = as_bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode()}
    if isinstance(value, list):  # Texts are words, for numbers that stand for them.
        return [_plain(each, kind) for each in value]
    return _numbers(numbers_of(value, kind.column("")).tolist())


def numbers_of(value: Any, column: Column) -> npt.NDArray[Any]:  # noqa: ANN401
    """The numbers of a value; bf16, which NumPy lacks, as float32."""
    array = np.asarray(value)
    if column.type == "bf16":
        # NumPy before 2 makes an int64 from one number and a Python int.
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array


def _numbers(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def plain_sample(sample: Any, columns: tuple[Column, ...]) -> Any:  # noqa: ANN401
    """A record for JSON; `columns` are those that it has."""
    if not columns:
        return plain(sample)
    return {column.name: plain(sample[column.name], column) for column in columns}


def dumps(value: Any) -> str:  # noqa: ANN401
    """One line of strict JSON, in characters that every terminal has."""
    return json.dumps(value, allow_nan=False)


def brief(value: Any, column: Column | None = None) -> str:  # noqa: ANN401
    """The value in a few words, for people."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return _quoted(value, len(value))
    if column is not None and (column.kind.fields or isinstance(value, list)):
        return _cut(dumps(plain(value, column)))
    if column is not None and not column.kind.is_text:
        return _brief_numbers(numbers_of(value, column.kind.column("")))
    data = as_bytes(value)
    kind = media_type(data)
    if kind is not None:
        return f"{len(data)} bytes of {kind[0]}"
    head = data[: 4 * _TEXT_MAX]
    # A character may be cut at the end.
    if data and (text := text_of(data if len(data) <= len(head) else _whole(head))) is not None:
        return _quoted(text, len(data))
    more = "..." if len(data) > _HEX_BYTES else ""
    return f"{len(data)} bytes{': ' if data else ''}{data[:_HEX_BYTES].hex()}{more}"


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}... ({len(text)})"


def _quoted(text: str, size: int) -> str:
    is_cut = size > len(text) or len(text) > _BRIEF_MAX
    return f'"{shown(text[:_BRIEF_MAX])}"' + (f"... ({size})" if is_cut else "")


def _whole(data: bytes) -> bytes:
    """Without a character that is cut at the end."""
    for cut in range(4):
        piece = data[: len(data) - cut]
        try:
            piece.decode()
        except UnicodeDecodeError:
            continue
        return piece
    return data


def _brief_numbers(array: npt.NDArray[Any]) -> str:
    if array.ndim == 0:
        return str(array.item())
    first = array.reshape(-1)[:_NUMBERS_SHOWN].tolist()
    more = ", ..." if array.size > _NUMBERS_SHOWN else ""
    shape = "x".join(map(str, array.shape))
    texts = [f"{v:.6g}" if isinstance(v, float) else str(v) for v in first]
    return f"{shape} [{', '.join(texts)}{more}]"


def brief_sample(sample: Any, columns: tuple[Column, ...]) -> str:  # noqa: ANN401
    """A record in a line, for people."""
    if not columns:
        return brief(sample)
    parts: Mapping[str, str] = {c.name: brief(sample[c.name], c) for c in columns}
    return "  ".join(f"{shown(name)}={text}" for name, text in parts.items())
