"""JSON lines, plain or gzip: each line is a payload."""

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, cast

from ffrecord.errors import CorruptionError
from ffrecord.pack.ahead import ahead
from ffrecord.pack.source import Progressed, SourceOptions

_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")


def is_json_lines(path: str) -> bool:
    """By its name, for its content may be any text."""
    return path.endswith(_SUFFIXES)


class JsonLinesSource:
    """Payload: the line, without its end; label: an integer field of the line, on request."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Remember the file; see `open_source` for arguments and errors."""
        options.allow(path, "JSON lines", "label_field")
        self.key: str | None = None
        self.classes: tuple[str, ...] = ()
        self.skipped: Counter[str] = Counter()
        self.size_bytes = os.stat(path).st_size
        label = {} if options.label_field is None else {"label": "i64"}
        self.schema: Mapping[str, str] = {**label, "payload": "bytes"}
        self._path = path
        self._label_field = options.label_field

    def samples(self) -> Iterator[Progressed]:
        """Yield the lines; blank ones are skipped.

        Raises:
            ValueError: a line is no JSON, or has no such label; names file and line.
        """
        yield from ahead(self._samples())

    def _samples(self) -> Iterator[Progressed]:
        with open(self._path, "rb") as raw:
            for number, line in enumerate(self._lines(raw), start=1):
                payload = line.rstrip(b"\r\n")
                if not payload.strip():
                    self.skipped["blank lines"] += 1
                    continue
                sample: dict[str, Any] = {"payload": payload}
                value = self._parse(number, payload)
                if self._label_field is not None:
                    sample["label"] = self._label(number, value)
                yield sample, raw.tell()

    def _lines(self, raw: BinaryIO) -> Iterator[bytes]:
        if not self._path.endswith(".gz"):
            yield from raw
            return
        try:
            with gzip.GzipFile(fileobj=raw) as unzipped:
                yield from cast("Iterator[bytes]", unzipped)
        except (gzip.BadGzipFile, EOFError) as error:
            raise CorruptionError(f"{self._path} is damaged or cut short: {error}") from error

    def _parse(self, number: int, payload: bytes) -> Any:  # noqa: ANN401 - any JSON
        try:
            return json.loads(payload)
        except ValueError as error:
            raise ValueError(f"{self._path}, line {number}: no JSON: {error}") from None

    def _label(self, number: int, value: Any) -> int:  # noqa: ANN401 - any JSON
        label = value.get(self._label_field) if isinstance(value, dict) else None
        if not isinstance(label, int) or isinstance(label, bool):
            raise ValueError(
                f"{self._path}, line {number}: the field {self._label_field!r} holds no integer, "
                f"but {label!r}"
            )
        return label
