"""Goal: videos and sounds are packed with the durations that they have.

Method: files of each container that PyAV writes here, also such as state no duration, from folders
and tars; and files that are no media.
"""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tutorial import framework

import ffrecord
from ffrecord.pack import FailedSamplesError, pack
from ffrecord.pack.maps import duration, keep

av: Any = framework("av")

pytestmark = pytest.mark.wrong_data

# By extension: container, codec, options. Those below the line state no duration.
KINDS: dict[str, tuple[str, str, dict[str, str]]] = {
    "mp4": ("mp4", "mpeg4", {}),
    "mov": ("mov", "mpeg4", {}),
    "mkv": ("matroska", "mpeg4", {}),
    "webm": ("webm", "libvpx", {}),
    "avi": ("avi", "mpeg4", {}),
    "wav": ("wav", "pcm_s16le", {}),
    "flac": ("flac", "flac", {}),
    "opus": ("ogg", "libopus", {}),
    "m4a": ("ipod", "aac", {}),
    # ---
    "m4s": ("mp4", "mpeg4", {"movflags": "frag_keyframe+empty_moov"}),
    "live": ("matroska", "mpeg4", {"live": "1"}),
    "mp3": ("mp3", "libmp3lame", {"write_xing": "0"}),
    "aac": ("adts", "aac", {}),
    "ts": ("mpegts", "mpeg2video", {}),
}


def media(kind: str, seconds: float) -> bytes:
    """A file with a grey picture, or silence, of that time."""
    container, codec, options = KINDS[kind]
    made = io.BytesIO()
    with av.open(made, "w", format=container, options=options) as file:
        if av.Codec(codec, "w").type == "video":
            stream = file.add_stream(codec, rate=25)
            stream.width = stream.height = 64
            stream.pix_fmt = "yuv420p"
            grey = np.zeros((64, 64, 3), np.uint8)
            frames = [av.VideoFrame.from_ndarray(grey) for _ in range(round(seconds * 25))]
        else:
            stream = file.add_stream(codec, rate=48000)
            own = stream.codec_context
            silence = np.zeros((1, round(seconds * 48000)), np.int16)
            whole = av.AudioFrame.from_ndarray(silence, format="s16", layout="mono")
            whole.sample_rate = 48000
            size = own.frame_size or 1024
            to = av.AudioResampler(own.format or "fltp", "mono", 48000, size)
            frames = [*to.resample(whole), *to.resample(None)]
        for frame in [*frames, None]:
            file.mux(stream.encode(frame))
    return made.getvalue()


def times(path: Path) -> list[float]:
    return [float(each) for each in ffrecord.open(path).column("duration_s")]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_duration(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    wanted = [1.0, 2.4, 5.0]
    files = [media(kind, seconds) for seconds in wanted]
    for number, data in enumerate(files):
        (tmp_path / "in" / "a" / f"{number}.{kind}").write_bytes(data)
    for workers in (1, 2):
        made = tmp_path / f"{workers}"
        pack(tmp_path / "in", made, map=duration(), workers=workers, part_size_bytes=1000)
        # Codecs of sound add silence to fill their frames.
        assert times(made) == pytest.approx(wanted, abs=0.06)
        assert [bytes(each["payload"]) for each in ffrecord.open(made)] == files


def test_a_sample_without_a_video_has_none(tmp_path: Path) -> None:
    data = media("mp4", 1.0)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("0.mp4", "0.txt", "1.txt", "2.txt", "2.mp4"):
            info = tarfile.TarInfo(name)
            content = data if name.endswith("mp4") else b"text"
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    pack(tmp_path / "a.tar", tmp_path / "x.ffr", map=duration())
    found = ffrecord.read_table(tmp_path / "x.ffr")
    assert found["duration_s"].to_pylist() == [1.0, None, 1.0]
    assert found["mp4"].to_pylist() == [data, None, data]


def test_other_functions_take_the_duration(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for seconds in (1.0, 3.0):
        (tmp_path / "in" / "a" / f"{seconds}.mkv").write_bytes(media("mkv", seconds))
    pack(tmp_path / "in", tmp_path / "x.ffr", map=[duration(), keep("duration_s < 2")])
    assert times(tmp_path / "x.ffr") == [1.0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text " * 1000,
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:9,\nhttp://127.0.0.1:1/a.ts\n",
        b"ffconcat version 1.0\nfile '%s'\n",
    ],
)
def test_what_is_no_media_is_named_and_reads_nothing_else(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "real.mp4").write_bytes(media("mp4", 1.0))
    (tmp_path / "in" / "a" / "0.mp4").write_bytes(media("mp4", 1.0))
    data = data.replace(b"%s", bytes(tmp_path / "real.mp4"))
    (tmp_path / "in" / "a" / "1.mp4").write_bytes(data)
    with pytest.raises(FailedSamplesError, match=r"a/1\.mp4.* no video and no sound"):
        pack(tmp_path / "in", tmp_path / "x.ffr", map=duration())
    whole = media("mp4", 3.0)
    (tmp_path / "in" / "a" / "1.mp4").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FailedSamplesError, match=r"a/1\.mp4.* is damaged"):
        pack(tmp_path / "in", tmp_path / "x.ffr", map=duration())
