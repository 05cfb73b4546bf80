"""Goal: a compressed or joined source is read to its very end, or refused.

Method: every byte of small archives is damaged, cut off or added to; what Python's own modules take
for a good end - of a stream, of a tar - must be an error here. Sources are read in this process.
"""

import bz2
import errno
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffrecord.errors import CorruptionError
from ffrecord.pack import SourceOptions, _places, open_source
from ffrecord.pack._decompressed import Stream
from packing import refused

Compress = Callable[[bytes], bytes]
FORMS: list[tuple[str, Compress]] = [
    ("gz", gzip.compress),
    ("bz2", bz2.compress),
    ("xz", lzma.compress),
]


def tar_of(
    files: dict[str, bytes | str] | list[tuple[str, bytes | str]], kind: bytes = tarfile.REGTYPE
) -> bytes:
    """Text is where a hard link leads to."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in files.items() if isinstance(files, dict) else files:
            info = tarfile.TarInfo(name)
            info.type = kind
            if isinstance(content, str):
                info.type, info.linkname = tarfile.LNKTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def packed(path: Path, content: bytes, **options: Any) -> list[Any]:  # noqa: ANN401 - of any source
    path.write_bytes(content)
    source = open_source([str(path)], SourceOptions(**options))
    if hasattr(source, "give_values"):
        source.give_values()
    return [sample for sample, _ in source.samples()]


FILES: dict[str, bytes | str] = {f"{i}.bin": bytes([i]) * 600 for i in range(3)}


@pytest.mark.parametrize(("suffix", "compress"), FORMS)
def test_a_damaged_stream_is_refused_wherever_it_is_damaged(
    tmp_path: Path, suffix: str, compress: Compress
) -> None:
    whole = compress(tar_of(FILES))
    path = tmp_path / f"a.tar.{suffix}"
    wanted = packed(path, whole)
    assert len(wanted) == 3
    harmless = 0

    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        for damaged in (bytes(flipped), whole[:at]):
            try:
                found = packed(path, damaged)
            except (CorruptionError, ValueError) as error:
                assert str(path) in str(error)
            else:  # Where it makes no difference: gzip's time, the last byte's unused bits.
                assert found == wanted
                assert len(damaged) == len(whole)
                harmless += 1
    assert harmless < 12


@pytest.mark.parametrize(("suffix", "compress"), FORMS)
def test_several_streams_are_one_and_nothing_else_may_follow(
    tmp_path: Path, suffix: str, compress: Compress
) -> None:
    tar = tar_of(FILES)
    path = tmp_path / "a.tar"
    joined = compress(tar[:1000]) + compress(tar[1000:])

    assert len(packed(path, joined)) == 3
    assert len(packed(path, joined + bytes(512))) == 3
    for more in (b"junk", compress(b"x")[:-1], bytes(512) + b"x", compress(b"more")):
        with pytest.raises(CorruptionError, match=r"a\.tar is damaged"):
            packed(path, joined + more)


@pytest.mark.parametrize(("suffix", "compress"), FORMS)
def test_lines_of_a_damaged_stream_are_refused(
    tmp_path: Path, suffix: str, compress: Compress
) -> None:
    whole = compress(b'{"a": 1}\n' * 1000)
    path = tmp_path / "a.jsonl.gz"
    assert len(packed(path, whole)) == 1000

    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for damaged in (whole[:-1], whole[:-9], flipped, whole + b"x"):
        with pytest.raises(CorruptionError, match=r"a\.jsonl\.gz is damaged"):
            packed(path, damaged)


def test_much_that_decompresses_from_little_is_read_in_pieces(tmp_path: Path) -> None:
    """Zlib holds back what it has decompressed when its input is at an end already."""
    content = bytes(5_000_000)

    (sample,) = packed(tmp_path / "a.tar.gz", gzip.compress(tar_of({"a": content})))

    assert sample["payload"] == content


@pytest.mark.parametrize("sector", [0, 3, 6])
def test_a_header_of_zeros_does_not_end_a_tar(tmp_path: Path, sector: int) -> None:
    damaged = bytearray(tar_of(FILES))
    damaged[512 * sector : 512 * (sector + 1)] = bytes(512)

    with pytest.raises((CorruptionError, ValueError), match=r"a\.tar"):
        packed(tmp_path / "a.tar", bytes(damaged))


def test_a_damaged_header_does_not_end_a_tar(tmp_path: Path) -> None:
    """Behind the last one, of an empty file, there is nothing but zeros."""
    whole = tar_of({"a.bin": b"x" * 600, "b.bin": b""})
    for sector in (0, 3):
        damaged = bytearray(whole)
        damaged[512 * sector + 100] ^= 1
        with pytest.raises((CorruptionError, ValueError), match=r"a\.tar"):
            packed(tmp_path / "a.tar", bytes(damaged))


def test_joined_tars_and_other_ends_are_refused(tmp_path: Path) -> None:
    tar = tar_of(FILES)
    end = 512 * 9
    assert len(packed(tmp_path / "a.tar", tar[: end + 512])) == 3  # One block of zeros will do.

    for damaged in (tar + tar, tar + b"x", tar[:end], tar[: end + 511], tar[:end] + b"x" * 1024):
        with pytest.raises(CorruptionError, match=r"a\.tar is damaged or truncated"):
            packed(tmp_path / "a.tar", damaged)


def test_hard_links_are_the_files_that_they_lead_to(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {"a.bin": b"first", "b.bin": "a.bin", "c.bin": "b.bin"}

    found = packed(tmp_path / "a.tar", tar_of(files))

    assert found == [{"name": name, "payload": b"first"} for name in files]
    with pytest.raises(ValueError, match=r"'b.bin' is a hard link to 'a.bin'"):
        packed(tmp_path / "a.tar.gz", gzip.compress(tar_of(files)))
    for target in ("none", "b.bin", "c.bin"):
        with pytest.raises(CorruptionError, match=r"hard link 'b.bin' leads to no file"):
            packed(tmp_path / "a.tar", tar_of({"a.bin": b"x", "b.bin": target, "c.bin": b"y"}))


def test_a_hard_link_leads_to_what_had_the_name_when_tar_came_to_it(tmp_path: Path) -> None:
    """`tar --append` adds newer files of a name; of `a a` it stores the second as a link to `a`."""
    files: list[tuple[str, bytes | str]] = [
        ("a.bin", b"old"),
        ("b.bin", "a.bin"),
        ("a.bin", "a.bin"),
        ("a.bin", b"new"),
        ("c.bin", "a.bin"),
        ("d.bin", "b.bin"),
    ]
    found = packed(tmp_path / "a.tar", tar_of(files), raw=True)
    assert [each["payload"] for each in found] == [b"old", b"old", b"old", b"new", b"new", b"old"]


def test_a_hard_link_to_a_symbolic_link_is_one_too(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind, target in (
            ("a.bin", tarfile.REGTYPE, ""),
            ("soft", tarfile.SYMTYPE, "a.bin"),
            ("hard", tarfile.LNKTYPE, "soft"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    source = open_source(path)
    assert [sample["name"] for sample, _ in source.samples()] == ["a.bin"]  # type: ignore[index]
    assert source.skipped == {"symbolic links": 2}


@pytest.mark.parametrize("name", ["BZh1.txt", "BZh91AY.txt", "\x1f\x8b.txt"])
def test_a_tar_is_not_compressed_because_of_its_first_name(tmp_path: Path, name: str) -> None:
    assert packed(tmp_path / "a.tar", tar_of({name: b"x"})) == [{"name": name, "payload": b"x"}]


def test_symbolic_links_are_counted_and_unknown_entries_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "a.bin"
        tar.addfile(link)
        pipe = tarfile.TarInfo("pipe")
        pipe.type = tarfile.FIFOTYPE
        tar.addfile(pipe)
        tar.addfile(tarfile.TarInfo("a.bin"))

    source = open_source(path)

    assert [sample["name"] for sample, _ in source.samples()] == ["a.bin"]  # type: ignore[index]
    assert source.skipped == {"symbolic links": 1, "special files": 1}
    with pytest.raises(ValueError, match=r"'a.bin' is an entry of type b'M'"):
        packed(path, tar_of({"a.bin": b"rest of a volume"}, kind=b"M"))


def test_the_command_says_what_is_damaged_without_a_traceback(tmp_path: Path) -> None:
    for suffix, compress in FORMS:
        source = tmp_path / f"a.tar.{suffix}"
        whole = compress(tar_of(FILES))
        for damaged in (whole[:-1], whole[:20]):
            source.write_bytes(damaged)
            assert f"damaged: {source} is damaged" in refused(3, source, tmp_path / "x.ffr")


# WebDataset


def test_what_the_first_sample_lacks_is_seen_in_the_others(tmp_path: Path) -> None:
    rest: dict[str, bytes | str] = {"1.jpg": b"a", "1.txt": b"b", "1.cls": b"1"}
    path = tmp_path / "a.tar"

    firsts: list[dict[str, bytes | str]]
    firsts = [{"0.jpg": b"x"}, {"0.jpg": b"x", "0.cls": b"1"}, {"0.jpg": b"x", "0.txt": b"y"}]
    for first in firsts:
        (sample, other) = packed(path, tar_of({**first, **rest}))
        assert (sample["label"] is None) == ("0.cls" not in first)
        assert (sample["txt"] is None) == ("0.txt" not in first)
        assert other == {"label": 1, "name": "1", "jpg": b"a", "txt": "b"}
    assert packed(path, tar_of({"0.jpg": b"x", **rest}), columns=("jpg",)) == [
        {"jpg": b"x"},
        {"jpg": b"a"},
    ]
    raw = packed(path, tar_of({"0.jpg": b"x", **rest}), raw=True)
    assert [sample["name"] for sample in raw] == ["0.jpg", "1.jpg", "1.txt", "1.cls"]


@pytest.mark.parametrize("late", [["x.jpg", "x.txt"], ["x.jpg", "x.cls"]])
def test_what_comes_after_the_look_must_be_like_what_was_seen(
    tmp_path: Path, late: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffrecord.pack._tar._LOOK_GROUPS", 3)
    files: dict[str, bytes | str] = {f"{i}.jpg": b"j" for i in range(3)}

    with pytest.raises(ValueError, match=f"{', '.join(late)} are a sample of WebDataset"):
        packed(tmp_path / "a.tar", tar_of({**files, **dict.fromkeys(late, b"1")}))


@pytest.mark.parametrize(
    ("late", "files"),
    [
        (["x.jpg", "x.txt", "x.png"], "jpg, .txt, .png"),
        (["x.jpg", "x.txt", "x.JPG"], "jpg, .txt, .jpg"),
        (["x.jpg", "x.txt", "x.txt"], "jpg, .txt, .txt"),
    ],
)
def test_a_late_sample_has_the_files_of_the_first_ones(
    tmp_path: Path, late: list[str], files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file more, and two for one column, of which only one could be kept."""
    monkeypatch.setattr("ffrecord.pack._tar._LOOK_GROUPS", 2)
    first = [f"{i}.{extension}" for i in range(2) for extension in ("jpg", "txt")]
    tar = tar_of([(name, b"1") for name in [*first, *late]])
    with pytest.raises(ValueError, match=f"the sample x has the files .{files}, the first ones"):
        packed(tmp_path / "a.tar", tar)


def test_a_sample_whose_files_do_not_stand_together_is_refused(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = dict.fromkeys(["0.jpg", "1.jpg", "0.txt", "1.txt"], b"1")

    with pytest.raises(ValueError, match="the files of the sample 0 are not adjacent"):
        packed(tmp_path / "a.tar", tar_of(files))
    assert len(packed(tmp_path / "a.tar", tar_of(files), raw=True)) == 4


def test_files_of_one_name_without_end_are_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffrecord.pack._tar._GROUP_FILES_MAX", 5)
    files: dict[str, bytes | str] = {f"a.{i}.png": b"p" for i in range(6)}

    with pytest.raises(ValueError, match=r"more than 5 files are called a\.\*"):
        packed(tmp_path / "a.tar", tar_of(files))


@pytest.mark.parametrize(
    "label", [b"cat", b"1_0", b"1.5", b"", b"9223372036854775808", b"1" * 5000]
)
def test_a_label_is_digits(tmp_path: Path, label: bytes) -> None:
    with pytest.raises(ValueError, match=r"0\.cls is .*, not a 64-bit integer"):
        packed(tmp_path / "a.tar", tar_of({"0.cls": label, "0.png": b"x"}))


@pytest.mark.parametrize("label", [-(1 << 63), 0, (1 << 63) - 1])
@pytest.mark.parametrize("zeros", [0, 100])
def test_a_label_may_be_any_integer_of_64_bits(tmp_path: Path, label: int, zeros: int) -> None:
    written = f" {'-' if label < 0 else '+'}{'0' * zeros}{abs(label)}\n".encode()
    (sample,) = packed(tmp_path / "a.tar", tar_of({"0.cls": written, "0.png": b"x"}))
    assert sample["label"] == label


def test_a_label_without_a_file_is_refused(tmp_path: Path) -> None:
    tar = tar_of({"0.cls": b"0", "0.png": b"x", "1.cls": b"1", "2.cls": b"2", "2.png": b"y"})
    with pytest.raises(ValueError, match=r"1\.cls is a label without a file"):
        packed(tmp_path / "a.tar", tar)


@pytest.mark.parametrize(("claimed", "is_read"), [(1 << 20, True), (1 << 33, False)])
def test_holes_that_a_header_claims_cost_no_memory(
    tmp_path: Path, claimed: int, is_read: bool
) -> None:
    """A sparse file of GNU tar: 512 bytes are stored, and the header says how many there are."""
    head = bytearray(tar_of({"a.txt": b"x" * 512})[:512])
    head[156:157] = b"S"
    head[257:265] = b"ustar  \0"
    head[386:410] = b"%011o\0%011o\0" % (0, 512)
    head[483:495] = b"%011o\0" % claimed
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    path = tmp_path / "x.tar"
    path.write_bytes(head + b"x" * 512 + bytes(1024))

    if is_read:
        ((sample, _),) = open_source(path).samples()
        assert sample["payload"] == b"x" * 512 + bytes(claimed - 512)  # type: ignore[call-overload, index]
    else:
        with pytest.raises(ValueError, match=r"'a\.txt' is sparse, and 8589934592 bytes"):
            open_source(path)


class _BadDisk(io.RawIOBase):
    """A file of which only the first bytes can be read."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        if not self._content:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        piece, self._content = self._content[: len(buffer)], self._content[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)


@pytest.mark.parametrize(
    "content",
    [b"", b"plain text" * 9, gzip.compress(bytes(1000), mtime=0)[:50]],
    ids=["empty", "plain", "gzip"],
)
def test_a_disk_that_fails_is_an_error_with_the_name(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="error: '/data/x'") as caught:
        Stream(_BadDisk(content), "/data/x").read()  # type: ignore[arg-type]
    assert caught.value.errno == errno.EIO
    with pytest.raises(OSError, match="error: '/data/y'"):
        monkeypatch.setattr(_places, "open_input", lambda path: _BadDisk(content))
        _places.read("/data/y")
