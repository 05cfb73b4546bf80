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
from ffrecord._cli.limits import Limits, free_in_groups_bytes, limits, memory_bytes


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
        "g/a/memory.max": "104857600\n",
        "g/a/b/memory.max": "max\n",
        "g/a/cpu.max": "max 100000\n",
        "g/a/b/cpu.max": "150000 100000\n",
        "g/other/memory.max": "1\n",
    }
    assert limits(process(tmp_path, "0::/a/b\n", V2, files)) == Limits(100 << 20, 1.5)


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    files = {"g/a/memory.max": "max\n", "g/a/cpu.max": "max 100000\n"}
    assert limits(process(tmp_path, "0::/a\n", V2, files)) == Limits(None, None)
    assert limits(tmp_path / "absent") == Limits(None, None)
    assert limits(process(tmp_path, "0::/\nnonsense\n", [], {})) == Limits(None, None)


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """With a namespace the path is /; without one the mount begins at the container's group."""
    files = {"g/memory.max": "1048576\n", "g/cpu.max": "50000 100000\n"}
    assert limits(process(tmp_path, "0::/\n", V2, files)) == Limits(1 << 20, 0.5)
    mounts = [("/docker/1", "g", "cgroup2 cgroup2 rw")]
    for path in ("/docker/1", "/docker/1/below", "/../outside"):
        assert limits(process(tmp_path, f"0::{path}\n", mounts, files)) == Limits(1 << 20, 0.5)


def test_version_1_has_a_tree_for_each_controller(tmp_path: Path) -> None:
    cgroup = "9:cpu,cpuacct:/c\n4:memory:/m/n\n1:name=systemd:/s\n0::/u\n"
    mounts = [
        ("/", "cpu", "cgroup cgroup rw,cpu,cpuacct"),
        ("/", "mem", "cgroup cgroup rw,memory"),
        ("/", "uni", "cgroup2 cgroup2 rw"),
    ]
    files = {
        "mem/memory.limit_in_bytes": "9223372036854771712\n",
        "mem/m/memory.limit_in_bytes": "104857600\n",
        "mem/m/n/memory.limit_in_bytes": "9223372036854771712\n",
        "cpu/c/cpu.cfs_quota_us": "200000\n",
        "cpu/c/cpu.cfs_period_us": "100000\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
    }
    assert limits(process(tmp_path, cgroup, mounts, files)) == Limits(100 << 20, 2.0)


def test_version_1_without_a_limit_says_a_huge_number(tmp_path: Path) -> None:
    files = {"mem/memory.limit_in_bytes": "9223372036854771712\n"}
    mounts = [("/", "mem", "cgroup cgroup rw,memory")]
    assert limits(process(tmp_path, "4:memory:/\n", mounts, files)) == Limits(None, None)


def test_pages_of_files_are_free_and_the_fullest_group_counts(tmp_path: Path) -> None:
    files = {
        "g/a/memory.max": "1000\n",
        "g/a/memory.current": "900\n",
        "g/a/memory.stat": "anon 500\nactive_file 100\ninactive_file 200\nfile 999\n",
        "g/a/b/memory.max": "max\n",
        "g/a/b/memory.current": "900\n",
    }
    assert free_in_groups_bytes(process(tmp_path, "0::/a/b\n", V2, files)) == 400
    files = {"g/a/b/memory.max": "1000\n", "g/a/b/memory.current": "1200\n"}
    assert free_in_groups_bytes(process(tmp_path, "0::/a/b\n", V2, files)) == 0
    assert free_in_groups_bytes(tmp_path / "absent") is None


def test_version_1_has_other_names_for_the_same(tmp_path: Path) -> None:
    files = {
        "mem/m/memory.limit_in_bytes": "1000\n",
        "mem/m/memory.usage_in_bytes": "900\n",
        "mem/m/memory.stat": "total_active_file 100\ntotal_inactive_file 200\nactive_file 7\n",
        "mem/memory.limit_in_bytes": "9223372036854771712\n",
        "mem/memory.usage_in_bytes": "900\n",
    }
    mounts = [("/", "mem", "cgroup cgroup rw,memory")]
    assert free_in_groups_bytes(process(tmp_path, "4:memory:/m\n", mounts, files)) == 400


def test_memory_of_the_machine_is_read_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  24 kB\nMemAvailable: 3 kB\nHugePages_Total: 0\n")
    assert memory_bytes(tmp_path / "meminfo") == (24 << 10, 3 << 10)
    assert memory_bytes(tmp_path / "absent") == (0, 0)


def test_doctor_shows_the_limits() -> None:
    facts = json.loads(ok("ffrecord", "doctor", "--json"))
    assert (facts["memory_limit_bytes"], facts["cpu_limit"]) == tuple(limits())
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
            f"{enter}from ffrecord import _ffrecord\nfrom ffrecord._cli.limits import limits\n"
            "print(limits().memory_bytes, _ffrecord.memory_cap_bytes())"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        # Batches get half.
        assert done.stdout == f"{100 << 20} {50 << 20}\n", done.stderr
    finally:
        group.rmdir()
