"""Goal: a checked file keeps its sums, whoever works on it at the same time or was killed there.

Method: writers killed at each call that changes something, and once more in what they left; copies
of that; another writer that gets ahead between two calls of a reader or a writer.
"""

import errno
import fcntl
import os
import pathlib
import shutil
from collections.abc import Callable

import pytest

from ffrecord.checkpoint import _checked_folders as checked
from ffrecord.checkpoint._checked_files import CheckedWriter
from test_checked_files import content, kills, read, until_killed, write

Path = pathlib.Path

pytestmark = pytest.mark.wrong_data

OLD, NEW, NEWER = content(9, 1), content(12, 2), content(15, 3)


def killed_states(path: Path, *, is_first: bool = False) -> list[int]:
    """At how many calls a writer of NEW can be killed."""

    def prepare() -> None:
        path.unlink(missing_ok=True)
        if not is_first:
            write(path, OLD)

    return list(kills(lambda: write(path, NEW), prepare))


def killed(path: Path, step: int) -> bytes:
    """Kill a writer of NEW in place of OLD; what is there then."""
    write(path, OLD)
    assert until_killed(step, lambda: write(path, NEW))
    return path.read_bytes()


def test_a_writer_killed_in_what_a_killed_one_left_leaves_a_checked_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    seen = set()
    for step in killed_states(path):
        second = 0
        while True:
            there = killed(path, step)
            if not until_killed(second, lambda: write(path, NEWER)):
                break
            found = read(path)
            assert found in (there, NEWER)
            seen.add(found)
            second += 1
        assert read(path) == NEWER
        assert checked.verify(tmp_path).damaged == {}
    assert seen == {OLD, NEW, NEWER}


@pytest.mark.parametrize("where", ["source", "destination"])
def test_a_file_moves_with_its_sums_from_and_to_what_a_killed_writer_left(
    where: str, tmp_path: Path
) -> None:
    source, destination = tmp_path / "a", tmp_path / "b"
    for step in killed_states(source):
        write(source, NEWER)
        write(destination, NEWER)
        there = killed(source if where == "source" else destination, step)

        checked.rename(source, destination)

        assert read(destination) == (there if where == "source" else NEWER)
        hidden = {name for name in os.listdir(tmp_path) if not name.endswith(".part")}
        assert hidden == {"b", ".b.sums"}


def test_a_move_that_fails_leaves_the_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", OLD)
    write(tmp_path / "b", NEW)
    replace = os.replace

    def failing(source: Path, destination: Path) -> None:
        if source == tmp_path / "a":
            raise OSError(errno.EIO, "as a disk does")
        replace(source, destination)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="as a disk does"):
        checked.rename(tmp_path / "a", tmp_path / "b")
    assert read(tmp_path / "a") == OLD and read(tmp_path / "b") == NEW
    assert checked.verify(tmp_path).damaged == {}


def test_a_copy_of_what_a_killed_first_writer_left_is_checked(tmp_path: Path) -> None:
    made, copied = tmp_path / "a", tmp_path / "b"
    made.mkdir()
    seen = 0
    for step in killed_states(made / "f", is_first=True):
        shutil.rmtree(made)
        made.mkdir()
        assert until_killed(step, lambda: write(made / "f", NEW))
        shutil.copytree(made, copied)
        if (copied / "f").exists():
            assert read(copied / "f") == NEW
            seen += 1
        shutil.rmtree(copied)
    assert seen > 0


def test_a_killed_write_in_a_copied_folder_leaves_the_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / "f", OLD)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    path = tmp_path / "b" / "f"

    for length in range(50):  # Killed while it wrote the sums of the next one.
        (tmp_path / "b" / ".f.next").write_bytes(b"FFRSUMS1"[:length].ljust(length, b"\0"))
        assert read(path) == OLD
        assert checked.verify(tmp_path / "b").damaged == {}
    write(path, NEW)
    assert read(path) == NEW


# --- At the same time ----------------------------------------------------------------------------


def before_sums_are_read(
    monkeypatch: pytest.MonkeyPatch, number: int, event: Callable[[], object]
) -> None:
    """Let something happen once, before the reading of a hidden file with that number."""
    left, read_bytes = number, Path.read_bytes

    def meanwhile(where: Path) -> bytes:
        nonlocal left
        left -= 1
        if left == -1:
            event()
        return read_bytes(where)

    monkeypatch.setattr(Path, "read_bytes", meanwhile)


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("at", range(3))
def test_a_writer_that_ends_while_the_sums_are_read_takes_none_from_the_reader(
    at: int, replaces: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    if replaces:
        write(path, OLD)
    for _ in kills(lambda: write(path, NEW), lambda: None):
        if path.exists() and path.read_bytes() == NEW:
            break
    waiting, sums = tmp_path / ".f.next", tmp_path / ".f.sums"
    assert waiting.exists()  # All that is left to do is to give them their name.

    before_sums_are_read(monkeypatch, at, lambda: os.replace(waiting, sums))
    assert read(path) == NEW


@pytest.mark.parametrize("at", range(2))
def test_a_file_that_is_replaced_while_the_sums_are_read_is_read_anew(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write(path, OLD)
    before_sums_are_read(monkeypatch, at, lambda: write(path, NEW))

    assert read(path) in (OLD, NEW)


def test_a_writer_that_gets_the_lock_of_a_finished_file_does_not_write_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = tmp_path / "f", fcntl.flock
    first = CheckedWriter(path)
    first.write(OLD)

    def late(descriptor: int, operation: int) -> None:
        if not first.closed:  # It ends after the other has opened its part file.
            monkeypatch.setattr(fcntl, "flock", flock)
            first.close()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with CheckedWriter(path) as second:
        second.write(NEW)
        assert read(path) == OLD
    assert read(path) == NEW
