"""Packing: samples of a source - folders, tars, JSON lines, TFRecords, ... - into record files."""

from ffrecord.pack._destination import DICTIONARY_BYTES, pack
from ffrecord.pack._recognise import open_source
from ffrecord.pack._source import Source, SourceOptions
from ffrecord.pack._summary import PackSummary
from ffrecord.pack._table import TableSource
from ffrecord.pack._unit import FailedSamplesError
from ffrecord.pack._workers import WorkerDiedError

__all__ = [
    "DICTIONARY_BYTES",
    "FailedSamplesError",
    "PackSummary",
    "Source",
    "SourceOptions",
    "TableSource",
    "WorkerDiedError",
    "open_source",
    "pack",
]
