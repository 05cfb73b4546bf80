"""Goal: files with checksums beside them are what was written, or say that they are not.

Method: every way of writing crossed with every way of reading; every byte region damaged; a child
that is killed at each call of the system that changes something.
"""

import mmap
import os
import pathlib
import random
import warnings
from collections.abc import Callable, Iterator

import pytest

from ffrecord.checkpoint import _checked_files as checked
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

        for name in ("replace", "rename", "unlink", "fsync", "write", "mkdir", "rmdir"):
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # For a moment it has no sums.
            with CheckedReader(path) as reader:
                seen.add(reader.read())
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
        assert checked.names_in(tmp_path) in ([], ["step"])
    assert os.listdir(tmp_path) == []  # What killed calls had set aside went with the last.


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
