"""Packing: samples of a source - folders, tars, JSON lines, TFRecords, ... - into record files."""

from ffrecord.pack.destination import PackSummary, pack
from ffrecord.pack.source import Source, Wishes, open_source

__all__ = ["PackSummary", "Source", "Wishes", "open_source", "pack"]
