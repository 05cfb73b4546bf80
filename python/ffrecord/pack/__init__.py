"""Packing: samples of a source - folders, tars, JSON lines, TFRecords, ... - into record files."""

from ffrecord.pack.destination import PackSummary, pack
from ffrecord.pack.source import Source, SourceOptions, open_source

__all__ = ["PackSummary", "Source", "SourceOptions", "open_source", "pack"]
