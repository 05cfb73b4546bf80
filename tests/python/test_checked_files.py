"""Goal: files with checksums beside them are what was written, or say that they are not.

Method: every way of writing crossed with every way of reading; every byte region damaged; a child
that is killed at each call of the system that changes something.
"""

import errno
import itertools
import mmap
import os
import pathlib
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from ffrecord.checkpoint import _checked_folders as checked
from ffrecord.checkpoint._checked_files import BLOCK_BYTES, CheckedReader, CheckedWriter
from ffrecord.errors import CorruptionError

Path = pathlib.Path

SIZES = (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 7)


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def write(path: Path, data: bytes, piece: int = 1 << 30) -> None:
    with CheckedWriter(path) as stream:
        for begin in range(0, len(data), piece):
            stream.write(data[begin : begin + piece])


def read(path: Path) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with CheckedReader(path) as reader:
            return reader.read()


@pytest.mark.wrong_data
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece", [1 << 30, BLOCK_BYTES, 600_001])
def test_a_file_holds_the_plain_bytes_however_they_were_written(
    size: int, piece: int, tmp_path: Path
) -> None:
    data = content(size)

    write(tmp_path / "f", data, piece)

    assert (tmp_path / "f").read_bytes() == data
    assert read(tmp_path / "f") == data
    assert checked.names_in(tmp_path) == ["f"]


@pytest.mark.wrong_data
def test_every_position_and_length_reads_what_is_there(tmp_path: Path) -> None:
    data = content(3 * BLOCK_BYTES + 7)
    write(tmp_path / "f", data)
    edges = [
        at + d for at in range(0, len(data) + 2, BLOCK_BYTES) for d in (-1, 0, 1) if at + d >= 0
    ]

    with CheckedReader(tmp_path / "f") as reader:
        for begin in [*edges, len(data), len(data) + 5]:
            for end in [*edges, len(data) + 5]:
                into = bytearray(max(0, end - begin))
                assert reader.seek(begin) == begin
                count = reader.readinto(into)
                assert bytes(into[:count]) == data[begin:end]
                assert reader.tell() == begin + count


@pytest.mark.wrong_data
@pytest.mark.parametrize("where", [0, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 3])
def test_a_flipped_bit_costs_its_block_and_nothing_else(where: int, tmp_path: Path) -> None:
    data = content(2 * BLOCK_BYTES + 9)
    write(tmp_path / "f", data)
    damaged = bytearray(data)
    damaged[where] ^= 4
    (tmp_path / "f").write_bytes(damaged)
    bad = where // BLOCK_BYTES

    with CheckedReader(tmp_path / "f") as reader:
        for number in range(3):
            reader.seek(number * BLOCK_BYTES)
            expected = data[number * BLOCK_BYTES :][:BLOCK_BYTES]
            if number == bad:
                with pytest.raises(CorruptionError, match=rf"offset {bad * BLOCK_BYTES} fails"):
                    reader.read(BLOCK_BYTES)
            else:
                assert reader.read(BLOCK_BYTES) == expected
    assert list(checked.verify(tmp_path).damaged) == [str(tmp_path / "f")]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[BLOCK_BYTES:] + data[:BLOCK_BYTES],  # Swapped blocks.
        lambda data: b"",
    ],
)
def test_cut_longer_and_swapped_files_are_noticed(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    write(tmp_path / "f", content(2 * BLOCK_BYTES))
    (tmp_path / "f").write_bytes(damage((tmp_path / "f").read_bytes()))

    with pytest.raises(CorruptionError, match="copy, or load an earlier checkpoint"):
        read(tmp_path / "f")


def test_no_byte_of_the_sums_can_change_unnoticed(tmp_path: Path) -> None:
    write(tmp_path / "f", content(BLOCK_BYTES + 1))
    sums = tmp_path / ".f.sums"
    whole = sums.read_bytes()

    for at in range(len(whole)):
        sums.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptionError, match=r"\.f\.sums is damaged"):
            read(tmp_path / "f")
    for length in range(len(whole)):
        sums.write_bytes(whole[:length])
        with pytest.raises(CorruptionError, match=r"\.f\.sums is damaged"):
            read(tmp_path / "f")


def test_a_file_of_another_program_is_read_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"theirs")

    with pytest.warns(UserWarning, match="read unchecked"), CheckedReader(tmp_path / "f") as reader:
        assert reader.read() == b"theirs"
    assert checked.verify(tmp_path) == (0, [str(tmp_path / "f")], {})


def test_an_exception_and_a_dropped_stream_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), CheckedWriter(tmp_path / "f") as stream:
        stream.write(content(2 * BLOCK_BYTES))
        raise KeyError
    CheckedWriter(tmp_path / "g").write(b"x")

    assert os.listdir(tmp_path) == []


def put(path: Path, kind: str) -> None:
    if kind == "file":
        write(path, b"there")
    elif kind != "absent":
        path.mkdir()
        if kind == "populated":
            write(path / "in", b"there")


@pytest.mark.parametrize("destination", ["absent", "empty", "populated", "file"])
@pytest.mark.parametrize("source", ["file", "populated"])
def test_a_rename_takes_exactly_the_free_places(
    source: str, destination: str, tmp_path: Path
) -> None:
    put(tmp_path / "from", source)
    put(tmp_path / "to", destination)
    taken = "absent file" if source == "file" else "absent empty"

    if destination in taken:
        checked.rename(tmp_path / "from", tmp_path / "to")
        assert checked.names_in(tmp_path) == ["to"]
    else:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(FileExistsError, match="something is there"):
            checked.rename(tmp_path / "from", tmp_path / "to")
        assert sorted(tmp_path.rglob("*")) == before
    where = tmp_path / ("to" if destination in taken else "from")
    assert read(where if source == "file" else where / "in") == b"there"


def test_a_rename_to_itself_keeps_the_sums(tmp_path: Path) -> None:
    write(tmp_path / "f", b"x")

    checked.rename(tmp_path / "f", tmp_path / "f")

    assert read(tmp_path / "f") == b"x"


def test_a_plain_file_that_replaces_a_checked_one_does_not_get_its_sums(tmp_path: Path) -> None:
    write(tmp_path / "f", b"old")
    (tmp_path / "plain").write_bytes(b"new")

    checked.rename(tmp_path / "plain", tmp_path / "f")

    with pytest.warns(UserWarning, match="read unchecked"), CheckedReader(tmp_path / "f") as reader:
        assert reader.read() == b"new"


def until_killed(step: int, change: Callable[[], None]) -> bool:
    """Do `change` in a child that ends at the given call that changes something; if it ended."""
    if (child := os.fork()) == 0:
        left = step

        def counted(call: Callable[..., object]) -> Callable[..., object]:
            def wrapped(*words: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    os._exit(9)
                return call(*words, **options)

            return wrapped

        for name in (
            "replace",
            "rename",
            "unlink",
            "fsync",
            "write",
            "mkdir",
            "rmdir",
            "ftruncate",
        ):
            setattr(os, name, counted(getattr(os, name)))
        change()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def kills(change: Callable[[], None], prepare: Callable[[], None]) -> Iterator[int]:
    step = 0
    while True:
        prepare()
        if not until_killed(step, change):
            return
        yield step
        step += 1


@pytest.mark.wrong_data
def test_a_killed_write_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    old, new = content(BLOCK_BYTES + 3, 1), content(2 * BLOCK_BYTES + 5, 2)
    path = tmp_path / "f"
    seen = set()

    for _ in kills(lambda: write(path, new), lambda: write(path, old)):
        seen.add(read(path))  # With sums, at every moment.
        assert checked.names_in(tmp_path) == ["f"]
        assert checked.verify(tmp_path).damaged == {}
    assert seen == {old, new}


@pytest.mark.wrong_data
def test_a_killed_first_write_leaves_nothing_or_a_checked_file(tmp_path: Path) -> None:
    new = content(BLOCK_BYTES + 5)
    path = tmp_path / "f"

    for _ in kills(lambda: write(path, new), lambda: path.unlink(missing_ok=True)):
        if path.exists():
            assert read(path) == new
        assert checked.names_in(tmp_path) in ([], ["f"])


def test_a_killed_removal_of_a_folder_leaves_all_or_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "step"

    def prepare() -> None:
        if not folder.exists():
            folder.mkdir()
            for name in "abc":
                write(folder / name, b"x")

    for _ in kills(lambda: checked.remove_folder(folder), prepare):
        if folder.exists():
            assert sorted(checked.names_in(folder)) == ["a", "b", "c"]
        else:
            checked.remove_folder(folder)  # Goes on where the killed call ended.
            assert os.listdir(tmp_path) == []
        assert checked.names_in(tmp_path) in ([], ["step"])
    assert os.listdir(tmp_path) == []


def test_an_error_leaves_the_buffer_to_its_owner(tmp_path: Path) -> None:
    write(tmp_path / "f", content(2 * BLOCK_BYTES))
    (tmp_path / "f").write_bytes(bytes(2 * BLOCK_BYTES))
    into = mmap.mmap(-1, 2 * BLOCK_BYTES)

    with CheckedReader(tmp_path / "f") as reader:
        try:
            reader.readinto(into)
        except CorruptionError:
            into.close()  # The error is still alive here.
    assert into.closed


def failing(call: Callable[..., object], at: int) -> Callable[..., object]:
    """`call`, which fails once: at its call number `at`."""
    left = itertools.count(-at)

    def wrapped(*words: object, **options: object) -> object:
        if next(left) == 0:
            raise OSError(errno.ENOSPC, "no space left")
        return call(*words, **options)

    return wrapped


@pytest.mark.wrong_data
@pytest.mark.parametrize("name", ["write", "fsync", "replace", "ftruncate"])
@pytest.mark.parametrize("at", range(3))
def test_a_stream_that_failed_once_never_replaces_the_file(
    name: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = b"good old", content(3 * BLOCK_BYTES + 5)
    write(tmp_path / "f", old)
    called: list[int] = []
    with monkeypatch.context() as patch:
        fails = failing(getattr(os, name), at)
        patch.setattr(os, name, lambda *words: (called.append(1), fails(*words))[1])
        try:
            stream = CheckedWriter(tmp_path / "f")
            for begin in range(0, len(new), BLOCK_BYTES):
                with suppress(OSError, ValueError):  # A caller that goes on.
                    stream.write(new[begin:][:BLOCK_BYTES])
            stream.close()
        except OSError:
            pass
    durable = name in ("fsync", "replace") and at > 0
    assert read(tmp_path / "f") in ([old, new] if durable or len(called) <= at else [old])
    assert checked.verify(tmp_path).damaged == {}


def test_a_stream_that_is_closed_while_an_exception_is_handled_says_so(tmp_path: Path) -> None:
    write(tmp_path / "f", b"old")

    def half() -> None:
        stream = CheckedWriter(tmp_path / "f")
        try:
            stream.write(b"half")
            raise KeyError
        finally:
            stream.close()

    with pytest.raises(RuntimeError, match="Use `with`"):
        half()
    assert read(tmp_path / "f") == b"old"
    try:
        raise KeyError
    except KeyError:  # A file of its own, written here, is whole.
        write(tmp_path / "f", b"new")
    assert read(tmp_path / "f") == b"new"
    assert checked.verify(tmp_path) == (1, [], {})


def test_a_second_writer_of_a_path_is_refused_and_a_dead_one_is_not_in_the_way(
    tmp_path: Path,
) -> None:
    first = CheckedWriter(tmp_path / "f")
    first.write(b"first")
    with pytest.raises(BlockingIOError, match="another writer has begun"):
        CheckedWriter(tmp_path / "f")
    if (child := os.fork()) == 0:
        first.abort()  # A child has a copy, and nothing to say.
        CheckedWriter(tmp_path / "g").write(content(2 * BLOCK_BYTES))
        os._exit(9)
    os.waitpid(child, 0)
    first.close()

    write(tmp_path / "g", b"second")

    assert (read(tmp_path / "f"), read(tmp_path / "g")) == (b"first", b"second")
    assert sorted(os.listdir(tmp_path)) == [".f.sums", ".g.sums", "f", "g"]


def test_what_killed_writers_and_removals_left_does_not_move_with_the_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "tmp" / "in").mkdir(parents=True)
    write(tmp_path / "tmp" / "in" / "f", b"x")
    (tmp_path / "tmp" / "in" / ".g.part").write_bytes(b"left")
    (tmp_path / "tmp" / ".h.removed").mkdir()

    checked.rename(tmp_path / "tmp", tmp_path / "step")

    assert sorted(path.name for path in (tmp_path / "step").rglob("*")) == [".f.sums", "f", "in"]


def test_a_removal_touches_only_its_own(tmp_path: Path) -> None:
    for name in ("step", ".step.backup.removed", "s[1]", "*"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_bytes(b"x")

    for name in ("step", "s[1]", "*"):
        checked.remove_folder(tmp_path / name)

    assert os.listdir(tmp_path) == [".step.backup.removed"]
    with pytest.raises(FileNotFoundError):
        checked.remove_folder(tmp_path / "step")
    (tmp_path / "link").symlink_to(tmp_path / ".step.backup.removed")
    with pytest.raises(NotADirectoryError):
        checked.remove_folder(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()


def test_names_of_these_modules_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "f", b"x")
    for name in (".g.sums", ".g.next", ".g.part", ".g.removed"):
        with pytest.raises(ValueError, match="are taken"):
            CheckedWriter(tmp_path / name)
        with pytest.raises(ValueError, match="are taken"):
            checked.rename(tmp_path / "f", tmp_path / name)
        with pytest.raises(ValueError, match="are taken"):
            checked.make_folder(tmp_path / name, parents=True)


def test_a_link_leads_to_the_checked_file(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    write(tmp_path / "disk" / "f", b"old")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "f")

    assert read(tmp_path / "link") == b"old"
    write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert read(tmp_path / "disk" / "f") == b"new"
    checked.rename(tmp_path / "disk" / "f", tmp_path / "link")
    assert not (tmp_path / "link").is_symlink()
    assert read(tmp_path / "link") == b"new"


def test_a_copied_folder_keeps_its_checksums(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / "f", content(BLOCK_BYTES + 1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    assert read(tmp_path / "b" / "f") == content(BLOCK_BYTES + 1)
    (tmp_path / "b" / "f").write_bytes(content(BLOCK_BYTES + 1, 2))
    assert list(checked.verify(tmp_path).damaged) == [str(tmp_path / "b" / "f")]


def test_verify_tells_what_is_gone_and_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("gone", "in/whole", "in/link"):
        write(tmp_path / name, b"x")
    (tmp_path / "gone").unlink()
    (tmp_path / "in" / "link").unlink()
    (tmp_path / "in" / "link").symlink_to("nowhere")

    found = checked.verify(tmp_path)

    assert (found.checked, found.unchecked) == (1, [])
    assert set(found.damaged) == {str(tmp_path / "gone"), str(tmp_path / "in" / "link")}
    for absent in (tmp_path / "nothing", tmp_path / "in" / "whole"):
        with pytest.raises(OSError, match="directory"):
            checked.verify(absent)


def test_a_path_is_that_of_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "f", b"other")
    monkeypatch.chdir(tmp_path)
    with CheckedWriter(Path("f")) as stream:
        monkeypatch.chdir(tmp_path / "other")
        stream.write(b"x")

    assert read(tmp_path / "f") == b"x"
    assert read(tmp_path / "other" / "f") == b"other"


def test_damage_is_told_although_the_caller_failed_of_it(tmp_path: Path) -> None:
    write(tmp_path / "f", content(BLOCK_BYTES))
    (tmp_path / "f").write_bytes(bytes(BLOCK_BYTES))

    def load(reader: CheckedReader) -> None:
        try:
            reader.read()
        except CorruptionError:
            raise AttributeError("what torch makes of it") from None

    with pytest.raises(CorruptionError, match="offset 0"), CheckedReader(tmp_path / "f") as reader:
        load(reader)


class Calls(list[tuple[str, str]]):
    """What changes the disk, in its order: the call, and the name of its file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Watch."""
        super().__init__()
        for name in ("fsync", "replace", "rename", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, self._seen(name, getattr(os, name)))

    def _seen(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*words: object, **options: object) -> object:
            target = words[-1] if name in ("replace", "rename") else words[0]
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target
            self.append((name, os.path.basename(str(path))))
            return call(*words, **options)

        return wrapped


def test_everything_is_durable_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    calls = Calls(monkeypatch)

    checked.make_folder(folder / "tmp", parents=True)
    assert calls == [
        ("mkdir", "run"),
        ("fsync", tmp_path.name),
        ("mkdir", "tmp"),
        ("fsync", "run"),
    ]
    calls.clear()
    write(folder / "tmp" / "f", b"x")
    assert [call for call in calls if call[0] != "unlink"] == [
        ("fsync", ".f.part"),
        ("fsync", ".f.next"),
        ("replace", "f"),
        ("replace", ".f.sums"),
        ("fsync", "tmp"),
    ]
    calls.clear()
    checked.rename(folder / "tmp", folder / "step")
    assert calls == [("rename", "step"), ("fsync", "run")]
    calls.clear()
    checked.remove_file(folder / "step" / "f")
    assert calls[-1] == ("fsync", "step")
    assert os.listdir(folder / "step") == []
    calls.clear()
    checked.remove_folder(folder / "step")
    assert calls[:2] == [("rename", ".step.removed"), ("fsync", "run")]


def test_a_move_between_file_systems_changes_nothing(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if os.stat(other).st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is no file system of its own")
        for folder in (tmp_path, Path(other)):
            write(folder / "f", folder.name.encode())

        with pytest.raises(OSError, match="two file systems"):
            checked.rename(tmp_path / "f", Path(other) / "f")

        assert read(Path(other) / "f") == Path(other).name.encode()
        assert read(tmp_path / "f") == tmp_path.name.encode()


def test_a_file_that_is_cut_while_it_is_read_is_damaged(tmp_path: Path) -> None:
    write(tmp_path / "f", content(2 * BLOCK_BYTES))
    with CheckedReader(tmp_path / "f") as reader:
        os.truncate(tmp_path / "f", BLOCK_BYTES)

        with pytest.raises(CorruptionError, match="was cut to"):
            reader.read()


def test_short_writes_of_the_system_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda to, data: whole(to, data[: max(1, len(data) // 2)]))

    write(tmp_path / "f", content(BLOCK_BYTES + 3))

    assert read(tmp_path / "f") == content(BLOCK_BYTES + 3)
