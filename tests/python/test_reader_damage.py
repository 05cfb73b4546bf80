"""Goal: damage is never read as data, and what is read beside it is what the policy says.

Method: small files of known records are cut, flipped and replaced by others, then read by every
policy.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ffrecord
from reading import typed_file


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return typed_file(tmp_path_factory.mktemp("typed"))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Thirty records, of which 7 and 8 have a flipped bit."""
    path = tmp_path / "damaged.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(30):
            writer.write(b"record %02d " % i * 20)
    content = bytearray(path.read_bytes())
    for i in (7, 8):
        content[content.index(b"record %02d" % i) + 9] ^= 4
    path.write_bytes(content)
    return path


def test_a_damaged_record_is_raised_with_file_and_index(damaged: Path) -> None:
    reader = ffrecord.open(damaged)

    assert bytes(reader[6]).startswith(b"record 06")
    with pytest.raises(ffrecord.CorruptionError, match=r"damaged\.ffr.*\b7\b"):
        reader.read([1, 7])


def test_a_damaged_record_is_skipped_replaced_or_kept(damaged: Path) -> None:
    reader = ffrecord.open(damaged)

    skipped = reader.read([6, 7, 9], on_corrupt="skip")
    replaced = reader.read([6, 7, 8, 9], on_corrupt="replace")
    kept = reader.read([6, 7], on_corrupt="keep")

    assert skipped.indices.tolist() == [6, 9]
    assert bytes(skipped[1]).startswith(b"record 09")
    assert replaced.indices.tolist() == [6, 9, 9, 9]
    assert bytes(replaced[1]).startswith(b"record 09")
    assert kept.status.tolist() == [0, 3]
    assert bytes(kept[1]) == b""
    found = reader.stats()["damaged"]
    assert list(found) == [7, 8]
    assert "damaged.ffr" in found[7]
    with pytest.raises(ValueError, match="raise, skip, replace, keep"):
        reader.read([0], on_corrupt="ignore")  # type: ignore[arg-type]


def test_more_damage_than_max_corrupt_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rotten.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(40):
            writer.write(b"record %02d" % i)
    content = path.read_bytes().replace(b"record 1", b"rec0rd 1").replace(b"record 2", b"rec0rd 2")
    path.write_bytes(content)

    assert len(ffrecord.open(path, max_corrupt=0.5).read(range(40), on_corrupt="skip")) == 20
    with pytest.raises(ffrecord.CorruptionError, match=r"20 damaged records.*allows"):
        ffrecord.open(path).read(range(40), on_corrupt="skip")
    everything = ffrecord.open(path).read(range(40), on_corrupt="keep")
    assert np.count_nonzero(everything.status) == 20


def test_replace_gives_up_when_nothing_is_good(tmp_path: Path) -> None:
    path = tmp_path / "all.ffr"
    with ffrecord.Writer(path) as writer:
        writer.write(b"payload-0")
        writer.write(b"payload-1")
    path.write_bytes(path.read_bytes().replace(b"payload", b"pay10ad"))

    with pytest.raises(ffrecord.CorruptionError, match="none of the 2 records"):
        ffrecord.open(path).read([0], on_corrupt="replace")


def test_a_file_cut_under_a_reader_is_damage_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "cut.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(2000):
            writer.write(bytes([i % 256]) * 1000)
    reader = ffrecord.open(path)
    reader[0]

    os.truncate(path, 1_000_000)

    for index in (0, 900, 1100, 1999):
        with pytest.raises((ffrecord.CorruptionError, OSError), match=rf"cut\.ffr.*{index}"):
            reader[index]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", ffrecord.CorruptionError, "bad.ffr"),
        (b"\x89PNG\r\n\x1a\n" + bytes(500), ffrecord.CorruptionError, "bad.ffr"),
        (b"hello, this is no record file\n" * 40, ValueError, "bad.ffr: not an FFRecord file"),
        (b"\x89FFREC\r\n\x1a\n\x00\xff" + bytes(20), ffrecord.CorruptionError, "bad.ffr"),
    ],
    ids=["empty", "png", "text", "header-only"],
)
def test_a_foreign_or_empty_file_is_refused_by_name(
    tmp_path: Path, content: bytes, error: type[Exception], message: str
) -> None:
    path = tmp_path / "bad.ffr"
    path.write_bytes(content)

    with pytest.raises(error, match=message):
        len(ffrecord.open(path))


@given(cut=st.integers(1, 100_000))
def test_a_cut_file_is_refused_wherever_it_is_cut(typed: Path, cut: int) -> None:
    whole = typed.read_bytes()
    path = typed.with_name("cut.ffr")
    path.write_bytes(whole[: len(whole) - 1 - cut % (len(whole) - 1)])

    with pytest.raises(ffrecord.CorruptionError, match=r"cut\.ffr"):
        len(ffrecord.open(path))


@given(bit=st.integers(0, 2**40))
def test_no_flipped_bit_changes_a_record_unnoticed(typed: Path, bit: int) -> None:
    content = bytearray(typed.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path = typed.with_name("flipped.ffr")
    path.write_bytes(content)

    try:
        batch = ffrecord.open(path).read(range(100), on_corrupt="keep")
    except (ffrecord.CorruptionError, ValueError) as error:
        # A flipped bit may also make the version one that this library does not know.
        assert "flipped.ffr" in str(error)
        return
    good = ffrecord.open(typed).read(range(100))
    for row in np.flatnonzero(batch.status == 0):
        np.testing.assert_array_equal(batch.records()[row], good.records()[row])


def open_descriptors() -> Iterator[str]:
    for entry in os.scandir("/proc/self/fd"):
        try:
            yield os.readlink(entry.path)
        except FileNotFoundError:
            continue  # The scan's own.


def test_a_failed_open_leaves_no_descriptor(damaged: Path) -> None:
    os.truncate(damaged, 200)
    for _ in range(5):
        with pytest.raises(ffrecord.CorruptionError):
            len(ffrecord.open(damaged))

    assert str(damaged) not in list(open_descriptors())


def test_text_that_is_not_utf8_is_damage_with_its_column(tmp_path: Path) -> None:
    writer = ffrecord.Writer(tmp_path / "a.ffr", {"text": "utf8", "label": "i64"})
    for text in (b"good", b"\xff\xfe"):
        writer._inner.write_fields([text, bytes(8)], b"")  # As other programs could.
    writer.close()
    batch = ffrecord.open(tmp_path / "a.ffr").read([0, 1])
    for _ in range(2):
        with pytest.raises(
            ffrecord.CorruptionError, match="column 'text' of the record in place 1"
        ):
            batch["text"]
    assert batch["label"].tolist() == [0, 0]


@pytest.mark.parametrize("count", [1, 2000])
@pytest.mark.parametrize("front", ["end", "zeros", "text"])
def test_a_file_whose_front_is_overwritten_is_damaged(
    tmp_path: Path, front: str, count: int
) -> None:
    path = tmp_path / "a.ffr"
    with ffrecord.Writer(path, {"x": "i64"}) as writer:
        for x in range(count):
            writer.write({"x": x})
    content = path.read_bytes()
    page = {"end": content[-4096:], "zeros": bytes(4096), "text": b"text" * 1024}[front]
    path.write_bytes(page + content[4096:])

    (report,) = ffrecord.verify(path)

    assert report.problem_count > 0
    try:
        with ffrecord.open(path) as reader:
            assert len(reader) == count  # By the copy of the header at the end.
    except ffrecord.CorruptionError as error:
        assert "a.ffr" in str(error) and "ffrecord repair" in str(error)
