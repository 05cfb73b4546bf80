"""Goal: packing removes only what packing made, and is done only when all of it is on the disk.

Method: folders that look like what a killed run leaves lie beside the destination: of users, of
other destinations, of running packs, of other hosts. Sources are made of dicts, in this process.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from ffrecord._write import new_folder
from ffrecord.errors import ConflictError
from ffrecord.pack import SourceOptions, open_source, pack
from packing import records


class Rows:
    """A source of dicts; calls `meanwhile` before the last one."""

    schema: Mapping[str, str] = {"x": "bytes"}
    key: str | None = None
    classes: tuple[str, ...] = ()
    metadata: Mapping[str, bytes] = {}

    def __init__(
        self, rows: list[dict[str, Any]], meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        self.skipped: Counter[str] = Counter()
        self.size_bytes = len(rows)
        self._rows, self._meanwhile = rows, meanwhile

    def samples(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the rows."""
        for number, row in enumerate(self._rows):
            if number == len(self._rows) - 1:
                self._meanwhile()
            yield row, number


ROWS = [{"x": b"%d" % i} for i in range(4)]


def killed(path: Path) -> Path:
    """What a pack into `path` that is killed leaves: its partial folder."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from ffrecord._write.new_folder import new_folder\n"
        "with new_folder(Path(sys.argv[1]), False) as parts:\n"
        "    (parts / 'PART_00000.ffr').write_bytes(b'x')\n"
        "    os._exit(1)\n"
    )
    before = set(os.listdir(path.parent))
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    (name,) = set(os.listdir(path.parent)) - before
    return path.parent / name


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left_over = killed(tmp_path / "x")
    assert left_over.name.startswith(".x.partial-")

    pack(Rows(ROWS), tmp_path / "x")

    assert os.listdir(tmp_path) == ["x"]


def test_folders_that_packing_did_not_make_stay(tmp_path: Path) -> None:
    """Nothing but a whole file of the maker's, on this host, is evidence."""
    claim = new_folder._claim_text()
    for name, content in {
        ".x.partial-mine": None,
        ".x.partial-abcdefgh": None,
        ".x.partial-aaaaaaaa": b"",
        ".x.partial-bbbbbbbb": claim.replace(os.uname().nodename.encode(), b"elsewhere"),
        ".x.partial-ABCDEFGH": claim,
        ".x.partial-aaaaaaaa.old": claim,
        ".y.partial-abcdefgh": claim,
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").touch()
        if content is not None:
            (tmp_path / name / new_folder._MAKER).write_bytes(content)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / new_folder._MAKER).write_bytes(claim)
    (tmp_path / ".x.partial-linkedto").symlink_to("elsewhere")
    (tmp_path / ".x.partial-theirown").mkdir()
    link = tmp_path / ".x.partial-theirown" / new_folder._MAKER
    link.symlink_to(tmp_path / "elsewhere" / new_folder._MAKER)
    (tmp_path / ".x.partial-afileaaa").write_bytes(claim)
    before = sorted(tmp_path.rglob("*"))

    pack(Rows(ROWS), tmp_path / "x")

    assert sorted(p for p in tmp_path.rglob("*") if "x" not in p.parts[-2:]) == before


@pytest.mark.parametrize("name", ["*", "[xy]", "x?"])
def test_a_name_is_no_pattern(tmp_path: Path, name: str) -> None:
    others = [killed(tmp_path / other) for other in ("x", "y", "xy")]
    own = killed(tmp_path / name)

    pack(Rows(ROWS), tmp_path / name)

    assert sorted(os.listdir(tmp_path)) == sorted([name, *(each.name for each in others)])
    assert not own.exists()


def test_a_running_pack_keeps_its_folder(tmp_path: Path) -> None:
    """The second finds the first one's folder locked; the first finds the name taken."""

    def second() -> None:
        pack(Rows([{"x": b"second"}]), tmp_path / "x")

    with pytest.raises(ConflictError, match="has appeared meanwhile"):
        pack(Rows(ROWS, second), tmp_path / "x")

    assert records(tmp_path / "x") == [{"x": b"second"}]
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("moment", ["at the end", "as it is replaced"])
def test_what_comes_into_a_folder_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    pack(Rows([{"x": b"old"}]), tmp_path / "x")
    notes = tmp_path / "x" / "notes.txt"
    exchange = new_folder._exchange

    def write_notes() -> None:
        notes.write_bytes(b"mine")

    def exchanged_after_notes(one: Path, other: Path) -> None:
        if not (one / "notes.txt").exists():  # Not when they are swapped back.
            write_notes()
        exchange(one, other)

    if moment == "as it is replaced":
        monkeypatch.setattr(new_folder, "_exchange", exchanged_after_notes)
    source = Rows(ROWS, write_notes) if moment == "at the end" else Rows(ROWS)
    with pytest.raises(ConflictError, match=r"notes\.txt"):
        pack(source, tmp_path / "x", replace=True)

    assert notes.read_bytes() == b"mine"
    assert records(tmp_path / "x") == [{"x": b"old"}]
    assert os.listdir(tmp_path) == ["x"]


def test_a_folder_called_like_a_record_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x" / "more.ffr").mkdir(parents=True)
    with pytest.raises(ConflictError, match=r"such as more\.ffr"):
        pack(Rows(ROWS), tmp_path / "x", replace=True)
    assert os.listdir(tmp_path / "x") == ["more.ffr"]


def test_parts_are_read_in_their_order_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_folder, "DIGITS", 1)
    for count, last in ((10, "PART_9.ffr"), (12, "PART_11.ffr")):
        rows = [{"x": b"%d" % i} for i in range(count)]
        pack(Rows(rows), tmp_path / f"{count}", part_size_bytes=1)
        assert max(os.listdir(tmp_path / f"{count}")) == last
        assert records(tmp_path / f"{count}") == rows


def test_a_folder_and_its_name_are_put_on_the_disk_in_that_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def noted_rename(one: Path, other: Path) -> None:
        done.append(f"rename {Path(other).name}")
        rename(one, other)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)

    pack(Rows(ROWS), tmp_path / "x")

    assert done[-3:] == ["sync parts", "rename x", f"sync {tmp_path.name}"]


@pytest.mark.parametrize("name", ["x", "x.ffr"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_is_no_destination(tmp_path: Path, name: str, exists: bool) -> None:
    (tmp_path / name).symlink_to(tmp_path / f"v1{name[1:]}")
    if exists:
        pack(Rows(ROWS), tmp_path / f"v1{name[1:]}")
    before = sorted(os.listdir(tmp_path))

    with pytest.raises(ConflictError, match=r"is a symbolic link to .*: name that"):
        pack(Rows(ROWS), tmp_path / name, replace=True)

    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / name).is_symlink()


def test_the_working_folder_may_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")

    pack(Rows(ROWS), ".", replace=True)

    assert len(records(tmp_path / "x")) == 4
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("name", ["b.ffr", "b"])
def test_relative_paths_are_those_of_the_folder_they_were_given_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for shard in ("one", "two"):
        (tmp_path / f"{shard}.jsonl").write_text('{"x": "a"}\n{"x": "b"}\n')
    monkeypatch.chdir(tmp_path)
    source = open_source(["one.jsonl", "two.jsonl"])

    def move_on(_: int) -> None:
        os.chdir(tmp_path / "elsewhere")

    pack(source, name, progress=move_on)

    assert os.listdir(tmp_path / "elsewhere") == []
    assert len(records(tmp_path / name)) == 4


@pytest.mark.parametrize("sizes", [[100], [99], [101], [50, 50], [33, 33, 34], [1, 200]])
def test_a_part_ends_with_the_record_that_reaches_its_size(
    tmp_path: Path, sizes: list[int]
) -> None:
    rows = [{"x": bytes(size)} for size in [*sizes, 100, 100, 1]]

    pack(Rows(rows), tmp_path / "x", part_size_bytes=100)

    parts, size = [0], 0
    for row in rows:
        if size >= 100:
            parts.append(0)
            size = 0
        parts[-1] += 1
        size += len(row["x"])
    found = [len(ffrecord.open(path)) for path in sorted((tmp_path / "x").iterdir())]
    assert found == parts


def test_what_was_skipped_is_summed_over_sources(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_bytes(b"{}\n" + b"\n" * (number + 1))

    paths = [str(tmp_path / f"{number}.jsonl") for number in range(3)]
    sources = open_source(paths, SourceOptions(raw=True))
    summary = pack(sources, tmp_path / "x.ffr")

    assert summary.skipped == {"blank lines": 6}


def test_lines_that_end_as_on_windows_lose_their_ends(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\r\n \r\n{"a": "\\r"}\r\n{"a": 2}')

    pack(open_source(tmp_path / "a.jsonl", SourceOptions(raw=True)), tmp_path / "x.ffr")

    assert [each["payload"] for each in records(tmp_path / "x.ffr")] == [
        b'{"a": 1}',
        b'{"a": "\\r"}',
        b'{"a": 2}',
    ]


def test_short_lines_are_lines_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'1\n{}\n""\n \n\n0')
    source = open_source(tmp_path / "a.jsonl", SourceOptions(raw=True))
    assert [sample["payload"] for sample, _ in source.samples()] == [b"1", b"{}", b'""', b"0"]  # type: ignore[index]
    assert source.skipped == {"blank lines": 2}


def test_progress_goes_on_over_sources_to_the_size_of_all(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.jsonl" for i in range(3)]
    for path in paths:
        path.write_bytes(b"{}\n" * 100)
    source = open_source(paths, SourceOptions(raw=True))
    seen: list[int] = []
    pack(source, tmp_path / "x.ffr", progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == source.size_bytes == 900
    assert {300, 600} <= set(seen)
