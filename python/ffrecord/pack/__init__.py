"""Packing: samples of a source - folders, tars, JSON lines, TFRecords, ... - into record files."""

from typing import TYPE_CHECKING

from ffrecord._base.lazy_names import later

if TYPE_CHECKING:
    from ffrecord.pack._against_source import SourceReport, verify_source
    from ffrecord.pack._destination import DICTIONARY_BYTES, pack
    from ffrecord.pack._estimate import PackEstimate, estimate_packing
    from ffrecord.pack._recognise import open_source
    from ffrecord.pack._source import Source, SourceOptions
    from ffrecord.pack._summary import PackSummary
    from ffrecord.pack._table import TableSource
    from ffrecord.pack._unit import FailedSamplesError
    from ffrecord.pack._worker_processes import WorkerDiedError

__all__ = [
    "DICTIONARY_BYTES",
    "FailedSamplesError",
    "PackEstimate",
    "PackSummary",
    "Source",
    "SourceOptions",
    "SourceReport",
    "TableSource",
    "WorkerDiedError",
    "estimate_packing",
    "open_source",
    "pack",
    "verify_source",
]

# A command that is killed and repeated imports them each time, and needs a few of them.
__getattr__ = later(
    __name__,
    {
        "DICTIONARY_BYTES": "_destination",
        "FailedSamplesError": "_unit",
        "PackEstimate": "_estimate",
        "PackSummary": "_summary",
        "Source": "_source",
        "SourceOptions": "_source",
        "SourceReport": "_against_source",
        "TableSource": "_table",
        "WorkerDiedError": "_worker_processes",
        "estimate_packing": "_estimate",
        "open_source": "_recognise",
        "pack": "_destination",
        "verify_source": "_against_source",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
