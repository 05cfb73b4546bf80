"""Goal: the lease of a process that was killed on this machine is free at once, any other is not.

Method: leases of processes that live, were killed, and are of other machines, all just touched;
two processes that take the same lease, in the order that does the most harm.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ffrecord.pack import _holder, _job, pack
from ffrecord.pack._holder import has_ended, this_process
from ffrecord.pack._inputs import Cut, Input
from ffrecord.pack._plan import Plan
from packing import PART, contents, write_classes

pytestmark = pytest.mark.wrong_data


@pytest.fixture
def another() -> "subprocess.Popen[str]":
    """A process that says who it is, and waits."""
    code = (
        "import sys; from ffrecord.pack._holder import this_process\n"
        "print(this_process(), flush=True); sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_process_has_ended_when_it_was_killed(another: "subprocess.Popen[str]") -> None:
    assert another.stdout is not None
    name = another.stdout.readline().strip()
    assert not has_ended(name)
    assert not has_ended(this_process())
    another.kill()
    os.waitid(os.P_PID, another.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(name)  # Its parent has not taken note yet.
    another.communicate()

    assert has_ended(name)
    machine, pid, started = name.split(".")
    assert not has_ended(f"other{machine}.{pid}.{started}")
    assert not has_ended(f"{machine}.{pid}.-")
    assert not has_ended(f"-.{pid}.{started}")
    assert has_ended(f"{machine}.{os.getpid()}.{started}1")  # The number is another process's now.
    for text in ("", "x", "host.12.0123456789abcdef", f"{machine}..", f"{machine}.x.1"):
        assert not has_ended(text)


def test_a_process_is_named_where_proc_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_holder, "_machine", lambda: "-")
    monkeypatch.setattr(_holder, "_started", lambda _: "")

    assert this_process() == f"-.{os.getpid()}.-"
    assert not has_ended(this_process())


@pytest.mark.parametrize("holder", ["killed", "of another machine"])
def test_a_lease_that_was_just_touched_is_free_if_its_holder_was_killed(
    holder: str, another: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files").mkdir()
    files = write_classes(tmp_path / "files")
    assert another.stdout is not None
    name = another.stdout.readline().strip()
    another.kill()
    another.communicate()
    if holder != "killed":
        name = f"f{name}"
    taken: list[int | None] = []
    take = _job.Job.take

    def after_another(job: _job.Job) -> "_job.Lease | None":
        if not taken:
            (job.own / "leases" / "000000").write_text(f"{name}.0123456789abcdef 0\n")
        lease = take(job)
        taken.append(None if lease is None else lease.unit)
        if lease is None:
            (job.own / "leases" / "000000").unlink()
        return lease

    monkeypatch.setattr(_job.Job, "take", after_another)
    pack(files, tmp_path / "x", part_size_bytes=PART)

    assert taken[0] == (0 if holder == "killed" else 1)
    assert (None in taken) == (holder != "killed")
    monkeypatch.undo()
    pack(files, tmp_path / "y", part_size_bytes=PART)
    assert contents(tmp_path / "x") == contents(tmp_path / "y")


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[_job.Lease, _job.Lease]:
    """Leases of one unit: two have seen that its holder is dead, and the second holds it now."""
    plan = Plan((Input("x", 1, ""),), ((Cut(0, 0, -1, 1),),), {})
    job = _job.Job(tmp_path / "x", plan)
    job.begin(restart=False)
    (job.own / "leases" / "000000").write_text("dead.0123456789abcdef 0\n")
    monkeypatch.setattr(_job, "_is_held", lambda *_: False)
    early, late = job.take(), job.take()
    assert early is not None
    assert late is not None
    return early, late


def test_who_took_a_lease_before_another_leaves_that_its_work(
    two: tuple[_job.Lease, _job.Lease],
) -> None:
    early, late = two
    with late:
        (late.work / "0.ffr").touch()
        with early:
            assert not early.is_mine()
            assert late.is_mine()
            assert (late.work / "0.ffr").exists()


def test_a_lease_that_is_lost_is_not_touched_any_more(
    two: tuple[_job.Lease, _job.Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost right before it is touched."""
    early, late = two
    path = late._path
    taken = path.read_text()
    path.write_text(f"{early.token} 0\n")

    def opened(name: Path, mode: str = "r") -> Any:  # noqa: ANN401 - whatever `open` gives
        if mode == "r+":
            early._end.set()  # This is its last touch.
            path.with_name("new").write_text(taken)
            path.with_name("new").rename(path)
        return open(name, mode)

    monkeypatch.setattr(_job, "open", opened, raising=False)
    monkeypatch.setattr(_job, "BEAT_S", 0.001)
    early._beat()

    assert path.read_text() == taken
