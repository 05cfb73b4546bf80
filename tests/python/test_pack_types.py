"""Goal: lists that were packed as bytes keep the type of their numbers, and are not mixed.

Method: two packings whose lists differ in nothing but the numbers in them,
against every way to put record files together; the same packings, of one type, fit on every way.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import ffrecord
from cli import ok, run
from ffrecord.pack import pack

pytestmark = pytest.mark.wrong_data

Lists = Sequence[Sequence[Any]]


class ListsAsBytes:
    """A source that says what its bytes are."""

    schema: ClassVar = {"v": "bytes", "x": "i64"}

    def __init__(self, lists: Lists, kind: str) -> None:
        self.types = {"v": f"list of {kind}"}
        self._lists, self._dtype = lists, {"f32": "<f4", "i64": "<i8"}[kind]

    def samples(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the rows."""
        for row, values in enumerate(self._lists):
            yield {"v": np.array(values, self._dtype), "x": row}, 0


def merged(paths: list[Path]) -> list[Any]:
    done = run("ffrecord", "merge", *paths, paths[0].parent / "m.ffr")
    if done.returncode:
        raise ValueError(done.stderr)
    return list(ffrecord.open(paths[0].parent / "m.ffr"))


def packed_again(paths: list[Path]) -> list[Any]:
    done = run("ffrecord-pack", *paths, paths[0].parent / "m.ffr")
    if done.returncode:
        raise ValueError(done.stderr)
    return list(ffrecord.open(paths[0].parent / "m.ffr"))


def each(paths: list[Path]) -> list[ffrecord.Records]:
    return [ffrecord.open(path) for path in paths]


WAYS: dict[str, Callable[[list[Path]], list[Any]]] = {
    "open": lambda paths: list(ffrecord.open(paths)),
    "concat": lambda paths: list(ffrecord.concat(each(paths))),
    "concat of views": lambda paths: list(
        ffrecord.concat([reader.subset(range(2)) for reader in each(paths)])
    ),
    "mix": lambda paths: list(ffrecord.mix(each(paths), [1, 1])),
    "merge": merged,
    "pack": packed_again,
}


def made(folder: Path, kinds: Sequence[str]) -> list[Path]:
    paths = [folder / f"{number}.ffr" for number in range(len(kinds))]
    for number, (path, kind) in enumerate(zip(paths, kinds, strict=True)):
        pack(ListsAsBytes([[number, 2], [3]], kind), path)
    return paths


@pytest.mark.parametrize("way", WAYS)
def test_lists_of_other_numbers_are_refused_together(way: str, tmp_path: Path) -> None:
    paths = made(tmp_path, ["f32", "i64"])

    with pytest.raises(ValueError, match=r"'v' is bytes that are a list of f32.*list of i64"):
        WAYS[way](paths)


@pytest.mark.parametrize("way", WAYS)
def test_lists_of_the_same_numbers_fit(way: str, tmp_path: Path) -> None:
    paths = made(tmp_path, ["f32", "f32"])

    samples = WAYS[way](paths)

    found = sorted(np.frombuffer(bytes(sample["v"]), "<f4").tolist() for sample in samples)
    assert found == [[0, 2], [1, 2], [3], [3]]


def test_a_column_that_is_left_out_is_not_compared(tmp_path: Path) -> None:
    paths = made(tmp_path, ["f32", "i64"])

    for number, path in enumerate(paths):
        ok("ffrecord-pack", path, tmp_path / f"x{number}.ffr", "--column", "x")

    both = [tmp_path / "x0.ffr", tmp_path / "x1.ffr"]
    assert [sample["x"] for sample in ffrecord.open(both)] == [0, 1, 0, 1]
    assert "ffrecord.types" not in ffrecord.open(both[0]).metadata()


@pytest.mark.parametrize("first", [0, 1])
def test_record_files_of_one_table_are_packed_together_whichever_nulls(
    first: int, tmp_path: Path
) -> None:
    pa = pytest.importorskip("pyarrow")
    paths = [tmp_path / "full.ffr", tmp_path / "nulls.ffr"]
    ffrecord.write_table(pa.table({"a": pa.array([1, 2], pa.int64())}), paths[0])
    ffrecord.write_table(pa.table({"a": pa.array([None, 4], pa.int64())}), paths[1])

    ok("ffrecord-pack", paths[first], paths[1 - first], tmp_path / "m.ffr")

    expected = [1, 2, None, 4] if first == 0 else [None, 4, 1, 2]
    assert ffrecord.read_table(tmp_path / "m.ffr")["a"].to_pylist() == expected
    assert [sample["a"] for sample in ffrecord.open(tmp_path / "m.ffr")] == expected


def test_a_file_that_does_not_say_its_types_fits(tmp_path: Path) -> None:
    (typed,) = made(tmp_path, ["f32"])
    untyped = tmp_path / "u.ffr"
    with ffrecord.Writer(untyped, {"v": "bytes", "x": "i64"}) as writer:
        writer.write({"v": np.array([7], "<f4"), "x": 5})

    assert [sample["x"] for sample in ffrecord.open([typed, untyped])] == [0, 1, 5]
    assert len(merged([typed, untyped])) == 3
    # Nothing says what the bytes of all are.
    assert ffrecord.open(tmp_path / "m.ffr").metadata() == {}
