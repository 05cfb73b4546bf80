"""One page about record files, which needs nothing from elsewhere.

Everything in a record is a stranger's: text is escaped, only pictures and sounds of known types are
embedded, and the page's own policy forbids every script but its own and every request.
"""

import base64
import hashlib
import html
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ffrecord import Batch, Reader
from ffrecord._cli.data.page_style import SCRIPT, STYLE
from ffrecord._cli.data.pictures import thumbnail
from ffrecord._cli.data.records import Keys
from ffrecord._cli.data.statistics import Statistics
from ffrecord._cli.data.values import as_bytes, brief, media_type, numbers_of, text_of
from ffrecord._cli.data.words import in_words
from ffrecord._cli.text import shown
from ffrecord._cli.units import show_size
from ffrecord._tables.schema import Column

# Limits for one picture or sound that is embedded as it is, and for text, tokens and bars that are
# shown.
_MEDIA_MAX = 1 << 20
_TEXT_MAX = 2000
_TOKENS_MAX = 128
_BARS_MAX = 50
_HEX_MAX = 64
_DAMAGED_MAX = 100
_FILES_MAX = 100
_COLUMNS_MAX = 64
_WORDS_MAX = 500


class Page:
    """Makes the page; `size_max_bytes` bounds the records in it."""

    def __init__(
        self,
        reader: Reader,
        statistics: Statistics,
        *,
        keys: Keys | None,
        size_max_bytes: int,
        tokens: np.dtype[Any] | None = None,
    ) -> None:
        """Make nothing yet.

        Args:
            reader: the records.
            statistics: of all of them, or of some.
            keys: their keys; None if these are not known.
            size_max_bytes: no record is added once the page has so many.
            tokens: the type of numbers that records without columns consist of.
        """
        self._reader = reader
        self._statistics = statistics
        self._keys = keys
        self._left = size_max_bytes
        self._room = size_max_bytes
        """The part of `_left` that the record that is being added has not used."""
        self._tokens = tokens
        self.record_count = 0

    @property
    def is_full(self) -> bool:
        """Whether no record will be added any more."""
        return self._left <= 0

    def pieces(self, batches: Iterable[Batch]) -> Iterator[str]:
        """The page, piece by piece, with the records of `batches`."""
        name = ", ".join(self._reader.where[:3])
        yield _HEAD.format(
            title=_text(name, 200), style=STYLE, style_hash=_hash(STYLE), script_hash=_hash(SCRIPT)
        )
        yield f"<header><h1>{_text(name, 400)}</h1>{self._facts()}</header>\n<main>"
        yield from self._damaged()
        yield from self._histograms()
        yield (
            "<h2>Records</h2><p><label>Search by key, index or text "
            '<input id="search" type="search" autocomplete="off"></label> '
            '<output id="found"></output></p><div id="records">'
        )
        for batch in batches:
            good = in_words(batch.select(np.flatnonzero(batch.status == 0)))
            rows = zip(
                batch.indices.tolist(), batch.sizes.tolist(), batch.status.tolist(), strict=True
            )
            for index, size, status in rows:
                value = None if status else next(good)
                if self.is_full:
                    continue
                problem = self._reader._describe(index, status) if status else None
                card = self._card(index, size, value, problem)
                self._left -= len(card)
                self.record_count += 1
                yield card
        yield "</div>"
        if self.is_full:
            yield "<p>The page is full: --max-size allows more records.</p>"
        yield f"</main><script>{SCRIPT}</script></body></html>\n"

    def _facts(self) -> str:
        facts = self._statistics.facts()
        seen, count = facts["seen_count"], facts["record_count"]
        rows = [
            ("records", f"{count:,} in {facts['file_count']} files"),
            ("size", show_size(facts["file_size_bytes"])),
            ("fingerprint", self._reader.fingerprint),
            ("examined", "all records" if seen == count else f"{seen:,} random records"),
            ("damaged", str(facts["damaged_count"])),
        ]
        if facts["compression"] is not None:
            rows.append(("compression", f"{facts['compression']:.2f}"))
        sizes = facts["size_bytes"]
        if sizes["count"]:
            spread = " / ".join(show_size(sizes[name]) for name in ("min", "mean", "max"))
            rows.append(("record size, least / mean / most", spread))
        columns = [f"{c.name}: {c.spelling}" for c in self._reader.columns[:_COLUMNS_MAX]]
        rows.append(("columns", ", ".join(columns) or "none: records are plain bytes"))
        names = [file.name for file in self._reader.files[:_FILES_MAX]]
        rows.append(("files", ", ".join(names)))
        if self._keys is None:
            rows.append(("keys", "not listed: there are too many records"))
        lines = "".join(f"<dt>{_text(n)}</dt><dd>{_text(v, 10_000)}</dd>" for n, v in rows)
        return f"<dl>{lines}</dl>"

    def _damaged(self) -> Iterator[str]:
        found = self._statistics
        if not found.damaged_count:
            return
        lines = [f"<li>{_text(what, 1000)}</li>" for what in list(found.damaged.values())]
        more = found.damaged_count - len(lines)
        rest = f"<p>and {more} more</p>" if more > 0 else ""
        listed = "".join(lines[:_DAMAGED_MAX])
        yield f'<section id="damaged"><h2>Damaged records</h2><ul>{listed}</ul>{rest}</section>'

    def _histograms(self) -> Iterator[str]:
        yield '<h2>Distributions</h2><div class="charts">'
        sizes = [
            (f"{show_size(low)} to {show_size(high)}", count)
            for low, high, count in self._statistics.size_histogram()
        ]
        yield _chart("record sizes", sizes)
        for column in self._statistics.columns[:_COLUMNS_MAX]:
            facts = column.facts()
            values = facts.get("values")
            if values:
                top = sorted(values, key=lambda pair: -pair[1])[:_BARS_MAX]
                kept = sorted(top)
                more = f", {len(kept)} of {len(values)} values" if len(values) > len(kept) else ""
                yield _chart(f"{column.column.name}{more}", [(str(v), n) for v, n in kept])
            elif not column.column.kind.is_text and facts.get("count"):
                yield _numbers(column.column, facts)
        yield "</div>"

    def _card(self, index: int, size: int, value: Any, problem: str | None) -> str:  # noqa: ANN401
        self._room = self._left
        key = self._keys.of(index) if self._keys is not None else None
        shown_key = "" if key is None else key.decode(errors="backslashreplace")
        words = [str(index), shown_key]
        if problem is not None:
            body = f'<p class="bad">{_text(problem, 1000)}</p>'
        elif self._reader.columns:
            parts = []
            for column in self._reader.columns[:_COLUMNS_MAX]:
                if self._room <= 0:
                    parts.append("<p>The other columns do not fit on this page.</p>")
                    break
                field = value[column.name]
                parts.append(f"<h4>{_text(column.name)}</h4>{self._value(field, column)}")
                self._room -= len(parts[-1])
                if not column.kind.fields and not column.kind.shape:
                    words.append(_word(field, column))
            body = "".join(parts)
        else:
            body = self._value(value, None)
            words.append(_word(value, None))
        title = f"{index}{f' · {_text(shown_key, 300)}' if shown_key else ''}"
        search = _text(" ".join(words).lower(), _WORDS_MAX)
        return (
            f'<article data-words="{search}"><h3>{title}</h3>'
            f"<p>{show_size(size)}</p>{body}</article>\n"
        )

    def _value(self, value: Any, column: Column | None) -> str:  # noqa: ANN401
        if value is None:
            return "<p>null</p>"
        if column is not None and (column.kind.fields or isinstance(value, list)):
            return f"<p>{_text(brief(value, column))}</p>"
        if isinstance(value, str):
            return _paragraph(value)
        if column is not None and not column.kind.is_text:
            numbers = numbers_of(value, column.kind.column(""))
            if numbers.ndim == 1 and numbers.dtype.kind in "iu" and numbers.size > 1:
                return _token_list(numbers)
            return f"<p>{_text(brief(value, column))}</p>"
        data = as_bytes(value)
        kind = media_type(data)
        if kind is not None:
            return self._media(data, *kind)
        if column is None and self._tokens is not None:
            if len(data) % self._tokens.itemsize:
                return f"<p>{len(data)} bytes are no whole tokens of {self._tokens}</p>"
            return _token_list(np.frombuffer(data, self._tokens))
        text = text_of(data[:_TEXT_MAX]) if data else None
        if text is not None:
            return _paragraph(text)
        more = "..." if len(data) > _HEX_MAX else ""
        return f"<p><code>{data[:_HEX_MAX].hex(' ')}{more}</code> ({len(data)} bytes)</p>"

    def _media(self, data: bytes, media: str, ending: str) -> str:
        size = f"<p>{_text(media)}, {show_size(len(data))}</p>"
        if media.startswith("image/"):
            small = thumbnail(data)
            if small is not None:
                data, media = small
        if len(data) > min(_MEDIA_MAX, max(self._room, 0)):
            return f"<p>{_text(media)}, {show_size(len(data))}: too large for this page</p>"
        url = f"data:{media};base64,{base64.b64encode(data).decode()}"
        if media.startswith("image/"):
            return f'<img alt="{_text(ending)}" src="{url}">{size}'
        return f'<audio controls preload="metadata" src="{url}"></audio>{size}'


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
media-src data:; style-src '{style_hash}'; script-src '{script_hash}'; base-uri 'none'; \
form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head><body>
"""


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(text: str, most: int = 300) -> str:
    """Text of anybody, as text: escaped for any place in the page, also in quotes."""
    return html.escape(shown(text, most), quote=True)


def _paragraph(text: str) -> str:
    # Lines stay lines, and all else that steers is shown as an escape.
    lines = "\n".join(_text(line, _TEXT_MAX) for line in text[:_TEXT_MAX].splitlines())
    return f"<pre>{lines}{'...' if len(text) > _TEXT_MAX else ''}</pre>"


def _word(value: Any, column: Column | None) -> str:  # noqa: ANN401
    """The text that finds a record: its own, or its number."""
    if isinstance(value, str):
        return value[:_WORDS_MAX]
    if value is None or isinstance(value, list):
        return ""
    if column is not None and not column.kind.is_text:
        return str(numbers_of(value, column.kind.column("")).item())
    return text_of(as_bytes(value)[:_WORDS_MAX]) or ""


def _token_list(numbers: np.ndarray[Any, Any]) -> str:
    items = "".join(f"<b>{number}</b> " for number in numbers[:_TOKENS_MAX].tolist())
    more = f"and {numbers.size - _TOKENS_MAX} more" if numbers.size > _TOKENS_MAX else ""
    return f'<p class="tokens">{items}{more}</p>'


def _chart(title: str, bars: list[tuple[str, int]]) -> str:
    most = max((count for _, count in bars), default=1)
    rows = "".join(
        f"<tr><th>{_text(name)}</th>"
        f'<td class="bar"><meter min=0 max={most} value={count}></meter></td>'
        f"<td>{count:,}</td></tr>"
        for name, count in bars
    )
    return f"<section><h3>{_text(title)}</h3><table>{rows}</table></section>"


def _numbers(column: Column, facts: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{name}</th><td>{_number(facts[name])}</td></tr>"
        for name in ("min", "mean", "max", "std", "nan_count", "infinite_count")
        if name in facts
    )
    title = _text(f"{column.name}: {column.spelling}")
    return f"<section><h3>{title}</h3><table>{rows}</table></section>"


def _number(number: float | None) -> str:
    if number is None:
        return "beyond float64"
    return f"{number:.6g}" if isinstance(number, float) else f"{number:,}"
