"""Packing: samples of a source - folders, tars, JSON lines, TFRecords, ... - into record files."""

from ffrecord.pack._against_source import SourceReport, verify_source
from ffrecord.pack._destination import DICTIONARY_BYTES, pack
from ffrecord.pack._estimate import PackEstimate, estimate_packing
from ffrecord.pack._recognise import open_source
from ffrecord.pack._source import Source, SourceOptions
from ffrecord.pack._summary import PackSummary
from ffrecord.pack._table import TableSource
from ffrecord.pack._unit import FailedSamplesError
from ffrecord.pack._workers import WorkerDiedError

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
