"""Packing: samples of a source - folders, tars, JSON lines, TFRecords, ... - into record files."""

from ffrecord.pack._destination import DICTIONARY_BYTES, PackSummary, pack
from ffrecord.pack._source import Source, SourceOptions, open_source
from ffrecord.pack._table import TableSource

__all__ = [
    "DICTIONARY_BYTES",
    "PackSummary",
    "Source",
    "SourceOptions",
    "TableSource",
    "open_source",
    "pack",
]
