"""JSON lines, plain or gzip: each line is a payload."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ffrecord.pack._ahead import ahead
from ffrecord.pack._source import Progressed, Source, SourceOptions, is_label
from ffrecord.pack._stream import open_stream

_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")


def is_json_lines(path: str) -> bool:
    """Recognised by its name, since its content may be any text."""
    return path.endswith(_SUFFIXES)


class JsonLinesSource(Source):
    """Payload: the line, without its end; label: an integer field of the line, on request."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Store the file; see `open_source` for arguments and errors."""
        options.allow(path, "JSON lines", "label_field")
        self.skipped = Counter()
        self.size_bytes = os.stat(path).st_size
        label = {} if options.label_field is None else {"label": "i64"}
        self.schema = {**label, "payload": "bytes"}
        self._path = path
        self._label_field = options.label_field

    def samples(self) -> Iterator[Progressed]:
        """Yield the lines; blank ones are skipped.

        Raises:
            CorruptionError: the compressed data is damaged or truncated.
            ValueError: a line is not JSON, or has no such label; names file and line.
        """
        yield from ahead(self._samples())

    def _samples(self) -> Iterator[Progressed]:
        with open(self._path, "rb") as raw:
            for number, line in enumerate(open_stream(raw, self._path), start=1):
                payload = line.rstrip(b"\r\n")
                if not payload.strip():
                    self.skipped["blank lines"] += 1
                    continue
                sample: dict[str, Any] = {"payload": payload}
                value = self._parse(number, payload)
                if self._label_field is not None:
                    sample["label"] = self._label(number, value)
                yield sample, raw.tell()

    def _parse(self, number: int, payload: bytes) -> Any:  # noqa: ANN401 - any JSON
        try:
            return json.loads(payload)
        except ValueError as error:
            raise ValueError(f"{self._path}, line {number}: not JSON: {error}") from None
        except RecursionError:
            raise ValueError(
                f"{self._path}, line {number}: JSON is nested more deeply than Python can read"
            ) from None

    def _label(self, number: int, value: Any) -> int:  # noqa: ANN401 - any JSON
        label = value.get(self._label_field) if isinstance(value, dict) else None
        if not isinstance(label, int) or isinstance(label, bool) or not is_label(label):
            raise ValueError(
                f"{self._path}, line {number}: the field {self._label_field!r} is not a 64-bit "
                f"integer, but {label!r:.80}"
            )
        return label
