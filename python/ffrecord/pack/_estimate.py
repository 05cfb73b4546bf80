"""An estimate of a packing, made by converting the first samples."""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffrecord._base import clock
from ffrecord._read.reader import open as open_records
from ffrecord._write.new_folder import check_vacant
from ffrecord.pack._destination import Conversion, check_least
from ffrecord.pack._resumable import check_some
from ffrecord.pack._source import Progressed, Source

# An estimate converts samples for this time, or this many bytes of the source.
_SAMPLE_S, _SAMPLE_BYTES = 3.0, 64 << 20


@dataclass(frozen=True)
class PackEstimate:
    """The result that `pack` would have; sizes in bytes, `raw` means before compression."""

    columns: dict[str, str]
    """Types by name; empty if records have no columns."""
    source_size_bytes: int
    sample_count: int
    """Samples that were converted for this."""
    is_whole: bool
    """Whether these are all, so that sizes and counts are no estimates."""
    record_count: int
    raw_size_bytes: int
    file_size_bytes: int
    bytes_per_second: float
    """Rate of the source, with one worker."""
    seconds: float
    """With the given number of workers, if nothing else limits them."""


def estimate_packing(
    source: Source | str | os.PathLike[str] | Sequence[str],
    destination: str | os.PathLike[str],
    *,
    map: Any = None,  # noqa: ANN401 - see `pack`
    schema: Any = None,  # noqa: ANN401
    workers: int = 1,
    max_failures: int = 0,
    compress: bool = False,
    dictionary_bytes: int = 0,
    replace: bool = False,
    key: str | None = None,
) -> PackEstimate:
    """Convert the first samples, for some seconds, and tell what all would be.

    Writes nothing to the destination, only a file in the folder for temporary ones. The first
    samples stand for all: where later ones are larger, so is the result. Arguments and errors are
    those of `pack`; the destination is checked, too.
    """
    check_least(workers, 1, "there is at least one worker")
    asked = Conversion(
        source,
        destination,
        map=map,
        schema=schema,
        are_several=workers > 1,
        compress=compress,
        dictionary_bytes=dictionary_bytes,
        key=key,
    )
    check_vacant(asked.path, replace)
    some = _Some(asked.samples)
    began = clock.now()
    with tempfile.TemporaryDirectory(prefix="ffrecord-pack-") as folder:
        path = Path(folder) / "sample.ffr"
        unit = asked.unit(lambda _: path, sys.maxsize, max_failures)
        unit.write_all(iter(some), asked.opened.name, lambda _: None)
        tally = unit.close()
        seconds = max(clock.now() - began, 1e-6)
        check_some([tally.as_json()])
        with open_records(path) as reader:
            columns = {column.name: column.spelling for column in reader.columns}
    (file,) = tally.files
    size_bytes = asked.opened.size_bytes
    share = 1.0 if some.is_whole or not size_bytes else min(some.done_bytes / size_bytes, 1.0)
    share = share or 1.0
    usable = min(workers, len(os.sched_getaffinity(0)))
    return PackEstimate(
        columns=columns,
        source_size_bytes=size_bytes,
        sample_count=tally.samples,
        is_whole=some.is_whole,
        record_count=round(file["record_count"] / share),
        raw_size_bytes=round(file["raw_size_bytes"] / share),
        file_size_bytes=round(file["file_size_bytes"] / share),
        bytes_per_second=size_bytes * share / seconds,
        seconds=seconds / share / usable,
    )


class _Some:
    """The first of some samples."""

    def __init__(self, samples: Iterator[Progressed]) -> None:
        self._samples = samples
        self.done_bytes = 0
        self.is_whole = False

    def __iter__(self) -> Iterator[Progressed]:
        end = clock.now() + _SAMPLE_S
        for item in self._samples:
            yield item
            self.done_bytes = item[1]
            if self.done_bytes >= _SAMPLE_BYTES or clock.now() > end:
                return
        self.is_whole = True
