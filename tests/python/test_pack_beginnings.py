"""Goal: a packing that is killed where it begins or ends leaves nothing that the next one keeps.

Method: an audit hook ends or stops a process before each of the calls by which the folder of a job
is made and removed; the same command is run again, and the whole listing is compared. Another run
beside a stopped one, which then goes on, must not harm it.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eventually import eventually
from ffrecord.pack import _job, pack
from packing import FUNCTIONS, PART, contents, write_classes

pytestmark = pytest.mark.wrong_data

# Sends itself a signal before the call of that number with a name like ".x.packing-1234abcd".
_PROGRAM = """
import os, signal, sys
number, name, seed = sys.argv[3:]
left = int(number)
def hook(event, arguments):
    global left
    if event in ("os.mkdir", "os.rename", "os.rmdir", "open", "os.remove", "os.scandir"):
        places = [str(one) for one in arguments if isinstance(one, str | os.PathLike)]
        if any(part in place for place in places for part in PARTS):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), getattr(signal, name))
PARTS = (".packing-", ".packing/plan.json", "/.removed.")
sys.addaudithook(hook)
from ffrecord.pack import pack
pack(sys.argv[1], sys.argv[2], part_size_bytes=20_000, shuffle=int(seed) if seed else None)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def whole(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole") / "x"
    pack(files, folder, part_size_bytes=PART)
    return contents(folder)


def stopping(
    files: Path, destination: Path, call: int, name: str, shuffle: int | None = None
) -> "subprocess.Popen[bytes]":
    """A packing that sends itself a signal before a call."""
    seed = "" if shuffle is None else str(shuffle)
    words = [str(files), str(destination), str(call), name, seed]
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *words], cwd=FUNCTIONS, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("shuffle", [None, 3])
def test_the_next_run_removes_what_a_kill_at_any_call_left(
    files: Path, tmp_path: Path, shuffle: int | None
) -> None:
    pack(files, tmp_path / "whole", part_size_bytes=PART, shuffle=shuffle)
    call, killed = 0, True
    while killed:
        call += 1
        process = stopping(files, tmp_path / "x", call, "SIGKILL", shuffle)
        said = process.communicate()[1]
        killed = process.returncode == -signal.SIGKILL
        assert killed or (process.returncode, said) == (0, b"")
        for lease in tmp_path.glob(".*.packing/*/leases/*"):
            os.utime(lease, (0, 0))  # As if a minute had passed.

        pack(files, tmp_path / "x", part_size_bytes=PART, shuffle=shuffle)

        assert sorted(os.listdir(tmp_path)) == ["whole", "x"], call
        assert contents(tmp_path / "x") == contents(tmp_path / "whole")
        for path in (tmp_path / "x").iterdir():
            path.unlink()
        (tmp_path / "x").rmdir()
    assert call > 6


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5, 6, 7])
def test_a_run_beside_one_that_is_beginning_does_not_harm_it(
    files: Path, tmp_path: Path, whole: dict[str, bytes], call: int
) -> None:
    process = stopping(files, tmp_path / "x", call, "SIGSTOP")
    eventually(lambda: _is_stopped(process.pid))

    pack(files, tmp_path / "x", part_size_bytes=PART)
    assert os.listdir(tmp_path) == ["x"]
    os.kill(process.pid, signal.SIGCONT)

    said = process.communicate()[1]
    assert (process.returncode, said) == (0, b"")
    assert os.listdir(tmp_path) == ["x"]
    assert contents(tmp_path / "x") == whole


def test_what_a_process_puts_into_a_folder_while_it_is_removed_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call had found the folder by the name that it had before."""
    real, calls = shutil.rmtree, []

    def late(folder: Path, **options: bool) -> None:
        calls.append(folder)
        real(folder, **options)
        if len(calls) == 1:
            (folder / "parts").mkdir(parents=True)

    (tmp_path / ".x.packing" / "done").mkdir(parents=True)
    monkeypatch.setattr(_job.shutil, "rmtree", late)
    _job.remove_at_once(tmp_path / ".x.packing")
    assert os.listdir(tmp_path) == []


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_folders_with_such_a_name_that_packing_did_not_make_stay(
    files: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    own = ".x.packing-0123abcd"
    for at in (f"{own}/plan", f"{own[:-1]}e/{'0' * 16}/done/000000", ".x.packing-0123abcd9/leases"):
        (tmp_path / at).mkdir(parents=True)
    (tmp_path / f"{own[:-1]}f").write_text("mine")
    before = sorted(os.listdir(tmp_path))

    pack(files, tmp_path / "x", part_size_bytes=PART)

    assert sorted(os.listdir(tmp_path)) == [*before, "x"]
    assert contents(tmp_path / "x") == whole
