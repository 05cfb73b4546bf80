"""Goal: the limits that `ffrecord doctor` shows are those of the control groups of the process.

Method: files as /proc and /sys/fs/cgroup have them, of both versions, in a folder; and a group of
its own, where one may be made.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli import ok, run
from ffrecord import _ffrecord
from ffrecord._cli.limits import cpu_limit


def process(
    folder: Path, cgroup: str, mounts: list[tuple[str, str, str]], files: dict[str, str]
) -> Path:
    """A folder like /proc/self; mounts are the root, the place below `folder`, and the type."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "cgroup").write_text(cgroup)
    lines = [
        f"30 24 0:26 {root} {folder / place} rw,nosuid shared:9 - {kind}"
        for root, place, kind in mounts
    ]
    (folder / "mountinfo").write_text("\n".join(["garbage", *lines, ""]))
    return folder


V2 = [("/", "g", "cgroup2 cgroup2 rw")]


def test_the_least_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    files = {
        "g/a/cpu.max": "max 100000\n",
        "g/a/b/cpu.max": "150000 100000\n",
        "g/other/cpu.max": "1 100000\n",
    }
    assert cpu_limit(process(tmp_path, "0::/a/b\n", V2, files)) == 1.5


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    files = {"g/a/cpu.max": "max 100000\n"}
    assert cpu_limit(process(tmp_path, "0::/a\n", V2, files)) is None
    assert cpu_limit(tmp_path / "absent") is None
    assert cpu_limit(process(tmp_path, "0::/\nnonsense\n", [], {})) is None


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """With a namespace the path is /; without one the mount begins at the container's group."""
    files = {"g/cpu.max": "50000 100000\n"}
    assert cpu_limit(process(tmp_path, "0::/\n", V2, files)) == 0.5
    mounts = [("/docker/1", "g", "cgroup2 cgroup2 rw")]
    for path in ("/docker/1", "/docker/1/below", "/../outside"):
        assert cpu_limit(process(tmp_path, f"0::{path}\n", mounts, files)) == 0.5


def test_version_1_has_a_tree_for_each_controller(tmp_path: Path) -> None:
    cgroup = "9:cpu,cpuacct:/c\n4:memory:/m/n\n1:name=systemd:/s\n0::/u\n"
    mounts = [
        ("/", "cpu", "cgroup cgroup rw,cpu,cpuacct"),
        ("/", "mem", "cgroup cgroup rw,memory"),
        ("/", "uni", "cgroup2 cgroup2 rw"),
    ]
    files = {
        "cpu/c/cpu.cfs_quota_us": "200000\n",
        "cpu/c/cpu.cfs_period_us": "100000\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
    }
    assert cpu_limit(process(tmp_path, cgroup, mounts, files)) == 2.0


def test_doctor_shows_the_limits() -> None:
    facts = json.loads(ok("ffrecord", "doctor", "--json"))
    assert facts["memory_limit_bytes"] == _ffrecord.memory_room()[1]
    assert facts["cpu_limit"] == cpu_limit()
    text = run("ffrecord", "doctor").stdout
    assert "memory limit" in text and "cpu limit" in text
    assert "cpu limit             None" not in text


def test_a_group_of_100_mib_is_seen() -> None:
    """In a group of this machine, of either version."""
    for folder in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = folder / f"ffrecord-test-{os.getpid()}"
        name = "memory.limit_in_bytes" if folder.name == "memory" else "memory.max"
        try:
            group.mkdir()
            break
        except OSError:
            continue
    else:
        pytest.skip("no control group may be made here")
    try:
        try:
            (group / name).write_text(str(100 << 20))
        except OSError as error:
            pytest.skip(f"no limit can be set here: {error}")
        enter = f"import os\nopen({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        code = (
            f"{enter}from ffrecord import _ffrecord\n"
            "print(_ffrecord.memory_room()[1], _ffrecord.memory_cap_bytes())"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        # Batches get half.
        assert done.stdout == f"{100 << 20} {50 << 20}\n", done.stderr
    finally:
        group.rmdir()
