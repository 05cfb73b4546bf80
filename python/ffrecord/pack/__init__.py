"""Packing: samples of a source - a folder of classes, a tar, JSON lines - into record files."""

from ffrecord.pack.destination import PackSummary, pack
from ffrecord.pack.folder import FolderSource
from ffrecord.pack.jsonl import JsonLinesSource
from ffrecord.pack.source import Source, open_source
from ffrecord.pack.tar import TarSource

__all__ = [
    "FolderSource",
    "JsonLinesSource",
    "PackSummary",
    "Source",
    "TarSource",
    "open_source",
    "pack",
]
