"""Goal: record files that are packed again keep their records, keys and metadata.

Method: files with keys of every kind: a column, none of the columns, of some records only, of the
same name twice; what is made of them is searched for every key. Sources are read in this process.
"""

from pathlib import Path
from typing import Any

import pytest

import ffrecord
from ffrecord.errors import ConflictError
from ffrecord.pack import SourceOptions, open_source, pack
from packing import records, refused

pytestmark = pytest.mark.wrong_data

Keys = list[bytes | None]


def written(
    path: Path,
    keys: Keys,
    first: int = 0,
    **options: Any,  # noqa: ANN401 - of the writer
) -> Path:
    with ffrecord.Writer(path, {"n": "i64", "s": "bytes"}, key=True, **options) as writer:
        for number, key in enumerate(keys, start=first):
            writer.write({"n": number, "s": b"%d" % number}, key=key)
    return path


@pytest.mark.parametrize(
    "keys",
    [
        [b"%d" % (i * 7 % 1000) for i in range(1000)],
        [b"k%d" % i if i % 3 == 1 else None for i in range(50)],
        [None, b"a", None, b"a", b"b", None],
        [bytes([i]) * (i + 1) * 250 for i in range(256)],
        [None] * 5,
        [b"\xff" * 65_535],
    ],
)
def test_keys_that_are_no_column_are_kept(tmp_path: Path, keys: Keys) -> None:
    source = written(tmp_path / "a.ffr", keys)

    pack(open_source(source), tmp_path / "x.ffr", compress=True)

    reader = ffrecord.open(tmp_path / "x.ffr")
    assert records(tmp_path / "x.ffr") == records(source)
    assert reader._open().keys(0) == [(i, key) for i, key in enumerate(keys) if key is not None]
    for key in keys:
        if key is not None:
            assert reader.find(key) == keys.index(key)


def test_keys_of_several_files_are_kept_with_their_records(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    kept: Keys = []
    for part in range(3):
        keys: Keys = [b"%d/%d" % (part, i) if (i + part) % 2 else None for i in range(300)]
        written(tmp_path / "parts" / f"{part}.ffr", keys, first=300 * part)
        kept += keys
    paths = [str(path) for path in sorted((tmp_path / "parts").iterdir())]

    pack(open_source(tmp_path / "parts"), tmp_path / "x", part_size_bytes=500)
    pack(open_source(paths), tmp_path / "y.ffr")

    for where in (tmp_path / "x", tmp_path / "y.ffr"):
        reader = ffrecord.open(where)
        found = reader.find_all([key for key in kept if key is not None])
        assert found == [i for i, key in enumerate(kept) if key is not None]
        assert [each["n"] for each in records(where)] == list(range(900))


def test_files_of_which_some_have_keys_are_packed_apart_or_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    paths = [tmp_path / "parts" / f"{name}.ffr" for name in "ab"]
    with ffrecord.Writer(paths[0], {"n": "i64", "s": "bytes"}) as writer:
        writer.write({"n": 0, "s": b""})
    written(paths[1], [b"k"], first=1)

    with pytest.raises(ValueError, match=r"b\.ffr has other keys than .*a\.ffr"):
        list(open_source([str(path) for path in paths]).samples())
    pack(open_source(tmp_path / "parts"), tmp_path / "x.ffr")

    assert ffrecord.open(tmp_path / "x.ffr").find("k") == 1


def test_keys_appended_later_are_kept_too(tmp_path: Path) -> None:
    path = written(tmp_path / "a.ffr", [b"a", b"b"])
    for more in (b"c", b"d"):
        with ffrecord.Writer(path, append=True, key=True) as writer:
            writer.write({"n": 9, "s": b""}, key=more)

    pack(open_source(path), tmp_path / "x.ffr")

    assert ffrecord.open(tmp_path / "x.ffr").find_all(list("abcde")) == [0, 1, 2, 3, None]


def test_another_column_may_be_the_key(tmp_path: Path) -> None:
    path = written(tmp_path / "a.ffr", [b"a", None])

    pack(open_source(path), tmp_path / "x.ffr", key="s")

    assert ffrecord.open(tmp_path / "x.ffr").find_all(["a", "0", "1"]) == [None, 0, 1]


def test_a_column_that_finds_a_record_by_chance_is_no_key(tmp_path: Path) -> None:
    """The first record's key is a value of a column of it, and of no other's."""
    keys: Keys = [b"0", b"x", b"y"]

    pack(open_source(written(tmp_path / "a.ffr", keys)), tmp_path / "x.ffr")

    reader = ffrecord.open(tmp_path / "x.ffr")
    assert reader.find_all(["0", "x", "y", "1", "2"]) == [0, 1, 2, None, None]


def test_keys_stay_when_their_column_goes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.ffr", [b"a", b"b"])

    pack(open_source(path, SourceOptions(columns=("n",))), tmp_path / "x.ffr")

    assert records(tmp_path / "x.ffr") == [{"n": 0}, {"n": 1}]
    assert ffrecord.open(tmp_path / "x.ffr").find("b") == 1


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.ffr", [b"first key", b"second key"])
    content = bytearray(path.read_bytes())
    content[content.index(b"second key")] ^= 1
    path.write_bytes(content)

    with pytest.raises(ffrecord.CorruptionError, match="key of record 1: its bytes are damaged"):
        list(open_source(path).samples())


@pytest.mark.parametrize("change", ["cut", "flipped", "longer"])
def test_a_file_whose_last_commit_cannot_be_read_is_refused(tmp_path: Path, change: str) -> None:
    """A reader does with the commits before, and a warning: ten of 1,010 records."""
    path = written(tmp_path / "a.ffr", [None] * 10)
    with ffrecord.Writer(path, append=True, key=True) as writer:
        for number in range(10, 1010):
            writer.write({"n": number, "s": b"%d" % number})
    content = bytearray(path.read_bytes())
    content[-20] ^= change == "flipped"
    path.write_bytes({"cut": content[:-100], "longer": content + b"x"}.get(change, content))

    for source in (path, tmp_path):
        message = refused(3, source, tmp_path / "x.ffr")
        assert f"{path}: the last " in message
        assert "make a whole file of it with 'ffrecord repair'" in message

    ffrecord.repair(path, tmp_path / "whole.ffr")
    assert pack(open_source(tmp_path / "whole.ffr"), tmp_path / "x.ffr").record_count == 1010


def test_every_record_of_many_reads_is_there(tmp_path: Path) -> None:
    """Reads grow to 1,024 records, and end where a file does."""
    (tmp_path / "parts").mkdir()
    keys: Keys = [b"%d" % i if i % 7 else None for i in range(5000)]
    for part in range(2):
        written(tmp_path / "parts" / f"{part}.ffr", keys, first=5000 * part)

    summary = pack(open_source(tmp_path / "parts"), tmp_path / "x.ffr")

    assert (summary.record_count, summary.skipped) == (10_000, {})
    reader = ffrecord.open(tmp_path / "x.ffr")
    assert reader.column("n").tolist() == list(range(10_000))
    kept = dict(reader._open().keys(0))
    assert [kept.get(i) for i in range(10_000)] == keys * 2


def test_files_beside_record_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    written(tmp_path / "parts" / "0.ffr", [None])
    for name in ("README.md", "1.FFR", ".hidden"):
        (tmp_path / "parts" / name).write_bytes(b"x")
    summary = pack(open_source(tmp_path / "parts"), tmp_path / "x.ffr")
    assert summary.skipped == {"files that are not *.ffr": 3}


def test_metadata_are_kept_or_refused(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for part in range(2):
        written(tmp_path / "parts" / f"{part}.ffr", [], metadata={"a": b"1", "b": b"\0"})
    with ffrecord.Writer(tmp_path / "c.ffr", metadata={"a": b"2"}) as writer:
        writer.write(b"x")
    with ffrecord.Writer(tmp_path / "d.ffr") as writer:
        writer.write(b"y")
    written(tmp_path / "parts" / "2.ffr", [None], metadata={"a": b"1", "b": b"\0"})

    pack(open_source(tmp_path / "parts"), tmp_path / "x.ffr")

    assert ffrecord.open(tmp_path / "x.ffr").metadata() == {"a": b"1", "b": b"\0"}
    with pytest.raises(ValueError, match="has other metadata than"):
        list(open_source([str(tmp_path / "c.ffr"), str(tmp_path / "d.ffr")]).samples())
    written(tmp_path / "parts" / "3.ffr", [None])
    with pytest.raises(
        ValueError, match=r"3\.ffr has other metadata than .*0\.ffr: pack them separately"
    ):
        open_source(tmp_path / "parts")


@pytest.mark.parametrize("destination", ["x", "x.ffr"])
def test_keys_that_are_no_column_stay_with_what_a_function_makes_of_a_sample(
    tmp_path: Path, destination: str
) -> None:
    keys: Keys = [b"k%d" % i if i % 3 else None for i in range(60)]
    source = written(tmp_path / "a.ffr", keys)
    place = tmp_path / destination
    pack(source, place, map="packing_functions:not_for_each")

    reader = ffrecord.open(place)
    for i, key in enumerate(keys):
        found = None if key is None else reader.find(key)
        assert (found is None) == (key is None or i % 4 in (2, 3))
        assert found is None or reader.read([found])[0]["n"] == i
    several = sum(key is not None and i % 4 == 3 for i, key in enumerate(keys))
    summary = pack(source, tmp_path / "y", map="packing_functions:not_for_each")
    assert summary.skipped["keys of samples that did not become one record"] == several


def test_keys_that_are_no_column_are_part_of_what_an_input_is(tmp_path: Path) -> None:
    """Else a run that goes on would have keys of the file before, and of the one after."""
    keys: Keys = [b"k%d" % i for i in range(300)]
    written(tmp_path / "a.ffr", keys)
    pack(tmp_path / "a.ffr", tmp_path / "x", part_size_bytes=1000)
    written(tmp_path / "a.ffr", keys[7:] + keys[:7], replace=True)
    with pytest.raises(ConflictError, match="exists"):
        pack(tmp_path / "a.ffr", tmp_path / "x", part_size_bytes=1000)
    pack(tmp_path / "a.ffr", tmp_path / "x", part_size_bytes=1000, replace=True)
    assert ffrecord.open(tmp_path / "x").find("k7") == 0
