"""The duration of videos and sounds."""

import io
from collections.abc import Mapping
from typing import Any

from ffrecord.pack._source import needed
from ffrecord.pack.maps._base import Map, column_in, value_of

_COLUMNS = (
    *("payload", "video", "audio", "mp4", "mov", "mkv", "webm", "avi"),
    *("wav", "flac", "ogg", "opus", "mp3", "m4a"),
)
_ADDED = "duration_s"
# Containers that FFmpeg may take a file for. Others are lists of files elsewhere, or pictures.
_FORMATS = "mov,matroska,webm,avi,wav,w64,flac,ogg,mp3,aac,aiff,caf,asf,flv,mpeg,mpegts,amr"
# Containers without a duration, which FFmpeg guesses by the size of the file.
_GUESSED = {"mp3", "aac", "mpeg", "mpegts", "amr", "flv"}


class duration(Map):
    """Adds `duration_s`, the seconds that a video or a sound takes; other columns stay.

    It is the duration that the file states. If a file states none, as MP3 and streams do not, it is
    the time from the first to the end of the last packet. Nothing is decoded.

    Args:
        column: with the files; by default the one called payload, video, audio, or as a usual
            extension.

    Raises:
        ImportError: PyAV is not installed.
    """

    def __init__(self, column: str = "") -> None:
        """Keep the argument."""
        self.column = column
        self.version = needed("av", "duration", "av").__version__  # Another may find another.

    def columns(self, source: Any) -> Any:  # noqa: ANN401 - see `Map`
        """Return those of the source and the duration.

        Raises:
            ValueError: there is a column of that name.
        """
        if source is None:
            return None
        self.column = self.column or column_in(source, _COLUMNS, "duration", "column")
        if _ADDED in getattr(source, "names", source):
            raise ValueError(f"duration: there is a column '{_ADDED}' already: leave it out first")
        if isinstance(source, Mapping):
            return {**source, _ADDED: "f64"}
        from ffrecord._tables.formats import pyarrow

        pa = pyarrow()
        is_nullable = source.field(self.column).nullable
        return source.append(pa.field(_ADDED, pa.float64(), is_nullable))

    def __call__(self, sample: Any) -> Any:  # noqa: ANN401
        """Return the sample with its duration, which is null if there is no file."""
        column = self.column or column_in(sample, _COLUMNS, "duration", "column")
        data = value_of(sample, column, "duration")
        return {**sample, _ADDED: None if data is None else _seconds_of(bytes(data))}


def _seconds_of(data: bytes) -> float:
    """The duration of a file.

    Raises:
        ValueError: it is no video and no sound, or is damaged.
    """
    av = needed("av", "duration", "av")
    # Else a file could make FFmpeg read other files, or ask servers.
    only_here = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}
    try:
        with av.open(io.BytesIO(data), options=only_here) as container:
            stated = container.duration
            if stated is not None and not _GUESSED.intersection(container.format.name.split(",")):
                return float(stated / av.time_base)
            return _seconds_of_packets(container)
    except av.FFmpegError as error:
        raise ValueError(
            f"duration: this is no video and no sound, or is damaged ({error.strerror}): --include "
            "packs only some files of a folder"
        ) from None


def _seconds_of_packets(container: Any) -> float:  # noqa: ANN401 - PyAV is not always there
    begin, end = [], []
    for packet in container.demux(*container.streams.video, *container.streams.audio):
        if packet.pts is not None:
            begin.append(packet.pts * packet.time_base)
            end.append((packet.pts + (packet.duration or 0)) * packet.time_base)
    if not end:
        raise ValueError("duration: the file has no packets of a video or a sound")
    return float(max(end) - min(begin))
