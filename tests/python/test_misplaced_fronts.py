"""Goal: the front of another file, written to the wrong place, costs only what it lies over.

Method: header, sector or page of another whole file in front of a file that was appended to, and
the other way round; then read, verify, repair.
"""

from pathlib import Path

import pytest

import ffrecord

pytestmark = [
    pytest.mark.wrong_data,
    pytest.mark.filterwarnings("ignore:the header at the front"),
]

Rows = list[tuple[str, int]]


def keyed(path: Path, numbers: range, *, append: bool = False) -> Path:
    """A file of records with keys; the pages of an append are its own."""
    options = {} if append else {"schema": {"k": "utf8", "n": "i64"}, "key": "k"}
    with ffrecord.Writer(path, append=append, **options) as writer:
        for n in numbers:
            writer.write({"k": f"k{n}", "n": n})
    return path


def rows(path: Path) -> Rows:
    with ffrecord.open(path) as reader:
        return [(sample["k"], sample["n"]) for sample in (reader[i] for i in range(len(reader)))]


def said(numbers: range) -> Rows:
    return [(f"k{n}", n) for n in numbers]


@pytest.fixture
def contents(tmp_path: Path) -> tuple[bytes, bytes]:
    """A file of 80 records, of which the first page has 50; and another of 50."""
    own = keyed(tmp_path / "own.ffr", range(50))
    keyed(own, range(50, 80), append=True)
    return own.read_bytes(), keyed(tmp_path / "other.ffr", range(100, 150)).read_bytes()


def test_a_file_is_read_and_repaired_below_the_header_of_another(
    tmp_path: Path, contents: tuple[bytes, bytes]
) -> None:
    own, other = contents
    path = tmp_path / "a.ffr"
    path.write_bytes(other[:128] + own[128:])

    assert rows(path) == said(range(80))
    (report,) = ffrecord.verify(path)
    assert report.problem_count > 0
    repaired = ffrecord.repair(path, tmp_path / "b.ffr")

    assert (repaired.kept_count, repaired.lost_count) == (80, 0)
    assert rows(tmp_path / "b.ffr") == said(range(80))
    with ffrecord.open(tmp_path / "b.ffr") as reader:
        assert reader.find("k79") == 79
    assert all(report.problem_count == 0 for report in ffrecord.verify(tmp_path / "b.ffr"))


@pytest.mark.parametrize("size", [512, 4096])
def test_repair_keeps_the_records_of_the_file_behind_the_front_of_another(
    tmp_path: Path, contents: tuple[bytes, bytes], size: int
) -> None:
    own, other = contents
    path = tmp_path / "a.ffr"
    path.write_bytes(other[:size] + own[size:])

    repaired = ffrecord.repair(path, tmp_path / "b.ffr")

    found = rows(tmp_path / "b.ffr")
    assert set(found) <= set(said(range(80))) and set(found) >= set(said(range(50, 80)))
    assert repaired.kept_count == len(found)


@pytest.mark.parametrize("size", [64, 4096])
def test_the_end_of_another_file_does_not_make_it_that_file(tmp_path: Path, size: int) -> None:
    one = keyed(tmp_path / "one.ffr", range(50)).read_bytes()
    two = keyed(tmp_path / "two.ffr", range(100, 150)).read_bytes()
    assert len(one) == len(two)
    path = tmp_path / "a.ffr"
    path.write_bytes(one[:-size] + two[-size:])

    with pytest.raises(ffrecord.CorruptionError):
        rows(path)
    ffrecord.repair(path, tmp_path / "b.ffr")

    assert rows(tmp_path / "b.ffr") == said(range(50))
