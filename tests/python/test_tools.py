"""The programs that judge others: the benchmark harness, the counter of tests, the demo's check.

Method: feed each with figures whose outcome is known, wrong ones included.
"""

import argparse
import fnmatch
import importlib.util
import json
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import types
from typing import Any

import pytest

from eventually import eventually, until_idle

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(path: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Import a file by its path, its folder in sight."""
    file = ROOT / path
    monkeypatch.syspath_prepend(str(file.parent))
    spec = importlib.util.spec_from_file_location(f"tool_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_arms_take_turns_and_another_one_begins_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = load("benchmarks/harness.py", monkeypatch)
    order: list[str] = []

    def arm(name: str) -> Any:  # noqa: ANN401 - of a module loaded by path
        return harness.Arm(name, "", lambda number: order.append(name) or float(number))

    values = harness.interleave([arm("a"), arm("b"), arm("c")], 3)

    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert values == {"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1, 2]}


def test_an_arm_that_is_lost_leaves_the_others_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = load("benchmarks/harness.py", monkeypatch)

    def fails_late(number: int) -> float:
        if number == 1:
            raise harness.Lost("gone")
        return 1.0

    arms = [harness.Arm("good", "", float), harness.Arm("lost", "", fails_late)]

    assert harness.interleave(arms, 3) == {"good": [0, 1, 2]}


def test_a_peer_that_is_not_installed_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    harness = load("benchmarks/harness.py", monkeypatch)
    arms = [
        harness.Arm("ours", "", lambda _: 2.0),
        harness.Arm("peer", "", lambda _: harness.foreign("no-such-program", "no-such-package")),
    ]
    outcome = harness.Outcome(
        "MB/s", arms, harness.interleave(arms, 5), {"ours_vs_peer": ("ours", "peer")}
    )

    found = harness.report("x", harness.Settings(True, 5, tmp_path, tmp_path), outcome)

    assert [arm["name"] for arm in found["arms"]] == ["ours"]
    assert found["ratios"] == {}
    assert "apt-get install no-such-package" in found["notes"][0]
    assert "no-such-program" in harness.table(found)


def test_a_loader_that_hangs_is_lost_and_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    processes = load("benchmarks/loader/arms/processes.py", monkeypatch)
    monkeypatch.setattr(processes, "_LEAVE_S", 0.1)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    python.chmod(0o700)

    with pytest.raises(processes.Failed, match="no answer within 2 s"):
        processes.Process(python, dict(os.environ), ["any"], begin_s=2.0)

    if (pid := tmp_path / "pid").exists() and (text := pid.read_text()):
        with pytest.raises(ProcessLookupError):
            os.kill(int(text), 0)


def test_a_ratio_is_the_median_of_the_ratios_of_each_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    harness = load("benchmarks/harness.py", monkeypatch)
    arms = [harness.Arm("ours", "", float), harness.Arm("fio", "", float)]
    # The machine slows down by ten in the last round, for both alike.
    values = {"ours": [100.0, 110.0, 12.0], "fio": [50.0, 100.0, 10.0]}
    outcome = harness.Outcome("images/s", arms, values, {"images_vs_fio": ("ours", "fio")})

    found = harness.report("read", harness.Settings(True, 3, tmp_path, tmp_path), outcome)

    assert found["ratios"] == {"images_vs_fio": 1.2}
    assert found["bench"] == "read"
    assert [arm["median"] for arm in found["arms"]] == [100, 50]
    assert "images_vs_fio" in harness.table(found)


def test_a_file_is_known_to_be_cold_or_warm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    harness = load("benchmarks/harness.py", monkeypatch)
    path = tmp_path / "data"
    path.write_bytes(bytes(1 << 20))

    harness.make_warm(path)

    assert harness.cached_share(path) >= harness.WARM_SHARE_MIN


def fake_tree(root: pathlib.Path, log: pathlib.Path, rates: list[float]) -> pathlib.Path:
    """A checkout whose benchmark notes its words, and finds these rates one run after the other."""
    program = root / "benchmarks" / "run"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"""#!{sys.executable}
import json, pathlib, sys
log, words = pathlib.Path({str(log)!r}), sys.argv[1:]
out = pathlib.Path(words[words.index("--json") + 1])
with log.open("a") as file:
    print({root.name!r}, *words[:words.index("--json")], file=file)
mine = [line for line in log.read_text().splitlines() if line.split()[0] == {root.name!r}]
rate = {rates!r}[len(mine) - 1]
if rate < 0:
    sys.exit(4)
arms = [{{"name": "ours", "median": rate}}]
out.write_text(json.dumps({{"ratios": {{"rate": rate}}, "figures": {{}}, "arms": arms}}))
"""
    )
    program.chmod(0o700)
    return root


def compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, after: list[float], *words: str
) -> tuple[int, list[str], dict[str, Any]]:
    """What `--against` says of two fake trees: exit code, runs, and the report."""
    turns = load("benchmarks/turns.py", monkeypatch)
    log, out = tmp_path / "log", tmp_path / "out.json"
    old = fake_tree(tmp_path / "old", log, [10, 20, 40, 80])
    new = fake_tree(tmp_path / "new", log, after)
    command = ["read", "--against", str(old), "--quick", "--json", str(out), *words]
    monkeypatch.setattr(sys, "argv", ["run", *command])
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part")
    parser.add_argument("--json", type=pathlib.Path)
    turns.add_options(parser)
    code = turns.bench(new, parser.parse_args(command))
    report = json.loads(out.read_text()) if out.exists() else {}
    return code, log.read_text().splitlines() if log.exists() else [], report


def test_two_trees_take_turns_and_a_turn_is_one_ratio(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    # The machine is four times as fast in the last turn, for both alike.
    code, runs, report = compared(monkeypatch, tmp_path, [15, 30, 60], "--part=turns", "--turns=3")

    told = "read --quick --part=turns"
    names = ["old", "new", "new", "old", "old", "new"]
    assert runs == [f"{name} {told}" for name in names]
    assert code == 0
    assert report["turns"] == 3
    assert report["keys"]["rate"] == {
        "before": 20,
        "after": 30,
        "after_over_before": 1.5,
        "ratio_min": 1.5,
        "ratio_max": 1.5,
    }
    assert report["keys"]["arm ours"]["after"] == 30


def test_no_turn_begins_that_would_end_after_the_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    code, runs, report = compared(
        monkeypatch, tmp_path, [1, 2, 3, 4], "--turns", "4", "--limit-s", "0.001"
    )

    assert (code, len(runs), report["turns"]) == (0, 2, 1)


def test_a_tree_whose_benchmark_fails_ends_the_comparison(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    code, runs, report = compared(monkeypatch, tmp_path, [1, -1])

    assert (code, len(runs), report) == (4, 3, {})


def test_processes_that_tests_start_have_torch_already() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    last = "'torch._dynamo' in __import__('sys').modules"
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        assert pool.apply(eval, (last,))


def test_failed_and_skipped_tests_are_counted_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    counts = load("tools/dev/counts.py", monkeypatch)
    report = tmp_path / "junit.xml"
    report.write_text(
        "<testsuites><testsuite><testcase name='a'/><testcase name='b'><failure/></testcase>"
        "<testcase name='c'><skipped/></testcase><testcase name='d'><error/></testcase>"
        "</testsuite></testsuites>"
    )

    assert str(counts.junit_counts(report)) == "1 passed, 2 failed, 1 skipped"


def test_each_suite_runs_once_and_what_measures_time_after_the_lanes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_tests = load("tools/dev/run_tests.py", monkeypatch)
    in_lanes = {"unit", "conformance", "clang", "rdma", "python", "crash"}
    done: list[str] = []
    both_lanes = threading.Barrier(2, timeout=60)

    def suite(name: str) -> Any:  # noqa: ANN401 - of a module loaded by path
        def run() -> Any:  # noqa: ANN401
            if name in ("unit", "rdma"):
                both_lanes.wait()  # The first of each: neither ends before the other begins.
            if name == "clang":
                until_idle()  # What does not wait for the lanes comes too early.
            if " alone" in name or name == "chaos":
                assert in_lanes <= set(done)
            done.append(name)
            return run_tests.Counts(passed=1)

        return run

    suites = {name: (name, suite(name)) for name in run_tests.SUITES}
    alone = {name: suite(f"{name} alone") for name in run_tests.ALONE}
    monkeypatch.setattr(run_tests, "SUITES", suites)
    monkeypatch.setattr(run_tests, "ALONE", alone)
    names = [name for name in suites if name not in ("changed", "tsan")]

    results = run_tests.run_all(names)

    wanted = [*names, *(f"{name} alone" for name in alone if name in names)]
    assert sorted(done) == sorted(wanted)
    assert results.total.passed == len(results.lines) == len(wanted)
    done.clear()
    in_lanes.clear()
    assert str(run_tests.run_all(["conformance"]).total) == "2 passed, 0 failed, 0 skipped"
    assert done == ["conformance", "conformance alone"]


# A program as GoogleTest makes them; its name says how it ends.
PROGRAM = """#!{python}
import os, sys, time
name = os.path.basename(sys.argv[0])
print("this is", name, flush=True)
if name == "killed":
    os.kill(os.getpid(), 11)
if name == "hangs":
    time.sleep(100)
said = "<failure message='wrong'/>" if name == "fails" else ""
with open(sys.argv[1].partition("=xml:")[2], "w") as report:
    report.write("<testsuites><testsuite name='Suite'><testcase name='Case' classname='Suite'>"
                 + said + "</testcase></testsuite></testsuites>")
sys.exit(name in ("fails", "leaks"))
"""
PROJECT = """project('p')
foreach name : ['passes', 'fails', 'leaks', 'killed', 'hangs']
  test(name, configure_file(input : 'program', output : name, copy : true), suite : 'unit',
    protocol : 'gtest', timeout : name == 'hangs' ? 1 : 30)
endforeach
test('other', find_program('true'), suite : 'unit')
"""


def test_a_program_that_dies_is_named_with_how_it_ended_and_its_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    builds = load("tools/dev/builds.py", monkeypatch)
    monkeypatch.setattr(builds, "ROOT", tmp_path)
    monkeypatch.setattr(builds, "BIN", pathlib.Path(sys.executable).parent)
    (tmp_path / "meson.build").write_text(PROJECT)
    (tmp_path / "program").write_text(PROGRAM.format(python=sys.executable))
    (tmp_path / "program").chmod(0o755)
    build = builds.Build("build")
    assert build.make()
    passed = "<testsuites><testsuite name='Suite'><testcase name='Old'/></testsuite></testsuites>"
    (tmp_path / "build" / "killed.xml").write_text(passed)  # Of a run before.

    counts = build.meson_test("unit")

    assert str(counts) == "3 passed, 4 failed, 0 skipped", counts.failures
    found = {one.name.rpartition(":")[2]: one.said for one in counts.failures}
    assert "wrong" in found.pop("Suite.Case")
    said = {"killed": "SIGSEGV", "leaks": "exit code 1", "hangs": "within its time limit (1 s)"}
    assert found.keys() == said.keys()
    for name, how in said.items():
        assert how in found[name]
        assert f"this is {name}" in found[name]


# Its first build takes for ever.
SLOW_PROJECT = """project('p')
custom_target('slow', output : 'slow', command : ['sh', '-c',
  'test -e begun && touch slow || { touch begun; sleep 1000; }'], build_by_default : true)
"""


def test_a_build_that_is_wanted_takes_over_from_the_one_beside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    builds = load("tools/dev/builds.py", monkeypatch)
    monkeypatch.setattr(builds, "ROOT", tmp_path)
    monkeypatch.setattr(builds, "BIN", pathlib.Path(sys.executable).parent)
    (tmp_path / "meson.build").write_text(SLOW_PROJECT)
    build = builds.Build("build")
    build.make_beside("all")
    eventually((tmp_path / "build" / "begun").exists)

    assert build.make("all")

    assert (tmp_path / "build" / "slow").exists()
    build.make_beside("all")  # Somebody wants it already: none begins.


def logged(steps: dict[int, list[int]], loss: float, digest: str) -> list[dict[str, Any]]:
    """What one rank logs: which samples each step learned from."""
    events: list[dict[str, Any]] = [{"event": "start"}, {"event": "epoch", "epoch": 0, "step": 0}]
    events += [
        {"event": "step", "step": step, "loss": loss / step, "ids": ids}
        for step, ids in steps.items()
    ]
    return [*events, {"event": "end", "step": max(steps), "digest": digest}]


def test_the_demo_sees_a_resumed_run_that_strays(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    demo = load("tools/demo_lib/demo.py", monkeypatch)
    samples = {step: [2 * step, 2 * step + 1] for step in range(1, 9)}
    whole = demo.Run("whole", [logged(samples, 1.0, "same")])
    killed = demo.Run("killed", [logged({s: samples[s] for s in range(1, 6)}, 1.0, "")[:-1]])

    def resumed(steps: dict[int, list[int]], loss: float, digest: str) -> Any:  # noqa: ANN401
        events = [{"event": "resume", "step": 4}, *logged(steps, loss, digest)]
        return demo.Run("resumed", [events])

    rest = {s: samples[s] for s in range(5, 9)}
    strayed = rest | {6: samples[7], 7: samples[6]}

    assert demo.compare(whole, killed, resumed(rest, 1.0, "same"))["exact"]
    assert not demo.compare(whole, killed, resumed(strayed, 1.0, "same"))["same_samples"]
    assert not demo.compare(whole, killed, resumed(rest, 1.5, "same"))["same_losses"]
    assert not demo.compare(whole, killed, resumed(rest, 1.0, "other"))["exact"]
    assert not demo.compare(whole, killed, resumed({8: [16, 17]}, 1.0, "same"))["exact"]


def setup_with(path: str) -> subprocess.CompletedProcess[str]:
    """Run tools/setup with another PATH."""
    return subprocess.run(
        ["/bin/bash", str(ROOT / "tools" / "setup")],
        env={"PATH": path, "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_setup_says_what_to_do_where_there_is_no_apt_get(tmp_path: pathlib.Path) -> None:
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")

    done = setup_with(str(tmp_path))

    assert done.returncode == 4
    assert "no apt-get here" in done.stderr
    assert "tools/packages.txt" in done.stderr


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no Debian")
def test_setup_refuses_an_old_python(tmp_path: pathlib.Path) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit\nexit 1\n')
    python.chmod(0o755)

    done = setup_with(f"{tmp_path}:{os.environ['PATH']}")

    assert done.returncode == 4
    assert "python3 is 3.9.2; Python 3.11 or newer is needed" in done.stderr


def test_setup_waits_for_another_apt(tmp_path: pathlib.Path) -> None:
    # A machine of stubs: root, nothing installed, and package lists that are locked at first.
    calls = tmp_path / "calls"
    stubs = {
        "id": "echo 0",
        "dpkg-query": "echo adduser installed",
        "apt-get": f"""
            echo "$*" >>{calls}
            [[ $* == *install* ]] && exit 7
            [[ $(wc -l <{calls}) -gt 2 ]] && exit 0
            echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1" >&2
            exit 100""",
    }
    for name, text in stubs.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o700)
    (tmp_path / "sleep").symlink_to("/bin/true")

    done = subprocess.run(
        [ROOT / "tools" / "setup"],
        env=os.environ | {"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 7, done.stderr  # It came as far as the installation.
    assert done.stderr.count("waiting for another apt") == 1
    said = calls.read_text().splitlines()
    assert [line.split()[0] for line in said] == ["update", "update", "update", "-o"]
    assert "DPkg::Lock::Timeout=" in said[-1]


def test_every_folder_is_of_a_room_and_every_room_has_what_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rooms = load("tools/dev/rooms.py", monkeypatch)
    tests = [path.name for path in (ROOT / "tests" / "python").glob("test_*.py")]
    parents = ("libffrecord", "client", "python/ffrecord", "tests/unit")
    folders = [
        f"{folder.relative_to(ROOT)}/"
        for parent in parents
        for folder in (ROOT / parent).iterdir()
        if folder.is_dir() and folder.name not in ("include", "__pycache__")
    ]

    assert [f for f in folders if rooms.select([f"{f}x"], tests).everything] == []
    for room in rooms.ROOMS:
        assert [path for path in room.paths if not (ROOT / path).exists()] == []
        assert [p for p in room.python if not fnmatch.filter(tests, p)] == []


def test_what_is_of_no_room_is_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = load("tools/dev/rooms.py", monkeypatch)
    tests = ["test_cli.py", "test_pack.py", "test_pack_folders.py"]

    packing = rooms.select(["python/ffrecord/pack/_tar.py", "server/main.cpp"], tests)
    assert packing == rooms.Selection({"server"}, {"test_pack.py", "test_pack_folders.py"})
    assert rooms.select(["tests/python/test_cli.py"], tests).python == {"test_cli.py"}
    assert rooms.select(["docs/cli.md", "meson.build"], tests).everything
    assert rooms.select(["tests/python/conftest.py"], tests).everything


def test_changes_are_those_since_the_branch_left(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = load("tools/dev/rooms.py", monkeypatch)

    def git(*words: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-m", name)

    git("init")
    commit("both")
    git("checkout", "-b", "branch")
    commit("ours")
    git("checkout", "main")
    commit("theirs")
    git("checkout", "branch")
    (tmp_path / "not\u00e9 known").write_text("")
    (tmp_path / "both").write_text("changed")

    assert rooms.changed(tmp_path) == ["both", "not\u00e9 known", "ours"]


@pytest.mark.parametrize(("hangs", "boots"), [(0, 1), (2, 3), (3, 3)])
def test_a_guest_that_hangs_in_its_boot_is_booted_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, hangs: int, boots: int
) -> None:
    rdma = load("tests/rdma/run.py", monkeypatch)
    begun: list[int] = []

    def words(*_: object) -> list[str]:
        begun.append(len(begun))
        works = f"echo > {tmp_path}/up-0; echo > {tmp_path}/done"
        return ["sh", "-c", works if begun[-1] >= hangs else "exec sleep 100"]

    monkeypatch.setattr(rdma, "guest_words", words)
    limits = [60.0 if number >= hangs else 0.2 for number in range(3)]
    monkeypatch.setattr(rdma, "START_LIMITS_S", limits)

    rdma.boot(rdma.Kernel(tmp_path, "0"), tmp_path / "initrd", tmp_path, 1, 60.0)

    assert len(begun) == boots
    assert (tmp_path / "done").exists() == (hangs < 3)
