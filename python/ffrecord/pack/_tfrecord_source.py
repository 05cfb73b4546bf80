"""Which of the sources of TFRecords reads a file."""

from ffrecord.pack._sequence import SequenceTable, is_sequence
from ffrecord.pack._source import Source, SourceOptions
from ffrecord.pack._tfrecord import RawTFRecords, TFRecordTable, is_tfrecord

__all__ = ["is_tfrecord", "tfrecord_source"]


def tfrecord_source(path: str, options: SourceOptions) -> Source:
    """Open it: as columns of features, or as payloads with `raw`.

    If there are several files, the first says whether they have `SequenceExample`.
    """
    if options.raw:
        return RawTFRecords(path, options)
    like = options.like
    is_list = is_sequence(path) if like is None else isinstance(like, SequenceTable)
    return SequenceTable(path, options) if is_list else TFRecordTable(path, options)
