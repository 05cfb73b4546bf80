"""Build and run the test suites; count all tests of all suites in one last line.

    tools/test                  what has to pass before a change lands: every test once
    tools/test --quick          style, and the unit and Python tests of the rooms changed since main
    tools/test --all            also unit, conformance and tsan, which are clang's in other builds
    tools/test --steady         the tests that differ from main, many times, beside a load
    tools/test unit python      the suites named
    tools/test --seed 7         what random tests draw; `fresh` draws anew (tests/unit/campaign)

A suite is a build folder and what is run in it. Folders are kept, so a second run builds only what
has changed. A run of every test runs those that failed again, alone, unless they are faults for
certain: tools/dev/unsteady.py. Exits 0 if nothing failed, 1 if something did, 2 for a name that is
no suite.
"""

import argparse
import concurrent.futures
import dataclasses
import itertools
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[1] / "tests" / "fuzz", HERE.parents[1] / "tests" / "rdma"):
    sys.path.insert(0, str(folder))
import fuzzing  # noqa: E402  (beside the targets, for tests/fuzz/campaign needs it too)
import rooms  # noqa: E402
import steadiness  # noqa: E402
import unsteady  # noqa: E402
from builds import BIN, CLANG, EVERYTHING, IDLE, PLAIN, ROOT, THREAD, TSAN, run, say, unbuilt  # noqa: E402
from counts import Counts, exit_status, failure, junit_counts  # noqa: E402
from run import EXIT_ENDED_EARLY as ENDED_EARLY  # noqa: E402  (of tests/rdma)
from run import PROGRAMS as GUEST_PROGRAMS  # noqa: E402

# Enough to find again what was mended; new things are found by tests/fuzz/campaign and
# tests/chaos/campaign.
FUZZ_SECONDS = 10
CHAOS_SECONDS = 30
SKIPPED = 77
UNSTEADY = ROOT / "tests" / "unsteady.md"
RDMA_S = "1500"  # Emulated: six minutes of a quiet machine, more of a busy one.
SLOWEST = 10
DISK_BYTES = 45 << 30  # For builds and tests from an empty clone; see docs/internals/testing.md.
# Landings use the same draws each time; campaigns look for others.
SEED = "1"
# Sanitized tests compute more than others, which run two for each processor: with as many of them,
# those of clusters miss their own time limits beside Python's.
SANITIZED_JOBS = 3
# Suites of Meson: tests that measure short times.
ALONE_SUITES = ("alone-unit", "alone-conformance")
# Files of tests/frameworks: those whose packages setup installs.
TRAINING = ("test_accelerate.py", "test_accelerate_gathering.py", "test_lightning.py")
# Python's tests wait for daemons, workers and time limits. A file's tests stay in one process.
IN_PROCESSES = ("-n", "3", "--dist", "loadfile")
# Suites whose tests run threads of their own: they are run under ThreadSanitizer.
THREADED = ("base", "io", "decode", "record", "net", "client", "server", "conformance")


# Tests take the package that tools/setup has put into .venv, not the one of a build folder.
INSTALLED = {"FFRECORD_TEST_INSTALLED": "1"}


def pytest_suite(
    folder: str,
    environment: dict[str, str],
    *options: str,
    files: Sequence[str] = (),
    name: str = "",
    python: pathlib.Path = BIN / "python",
) -> Counts:
    """Run pytest over one folder, or over those files of it; `name` is that of its report."""
    report = ROOT / "build" / f"{name or folder.replace('/', '-')}.junit.xml"
    report.parent.mkdir(exist_ok=True)

    def attempt(*words: str) -> Counts:
        report.unlink(missing_ok=True)
        command = [python, "-m", "pytest", "-q", "--junitxml", report, *options, *words]
        code = run(*command, environment=environment)
        counts = junit_counts(report) if report.exists() else Counts()
        if code and not counts.failed:
            counts.fail(f"pytest {folder}", exit_status(code))
        return counts

    counts = attempt(*([f"{folder}/{file}" for file in files] or [folder]))
    here = ("-n", "0") if "-n" in options else ()  # The later of two counts.
    return counts.can_be_run_again(lambda test: attempt(*here, test))


def crash_suite() -> Counts:
    """Kill programs of the plain build; its own extension does the checking."""
    if not PLAIN.make():
        return unbuilt(PLAIN.folder)
    # The last of its lane: no other keeps the second processor busy.
    environment = {"FFRECORD_BUILD_DIR": str(ROOT / PLAIN.folder)}
    return pytest_suite("tests/crash", environment, "-n", "2")


def chaos_suite(*options: str) -> Counts:
    """Let faults loose on the daemon of the plain build; its own extension does the checking."""
    if not PLAIN.make():
        return unbuilt(PLAIN.folder)
    return pytest_suite("tests/chaos", {"FFRECORD_BUILD_DIR": str(ROOT / PLAIN.folder)}, *options)


def rdma_suite() -> Counts:
    """Run what wants an RDMA device in a virtual machine that has one."""
    if not PLAIN.make("all", *sorted({program for program, _ in GUEST_PROGRAMS})):
        return unbuilt(PLAIN.folder)
    build = ROOT / PLAIN.folder
    machine = "tests/rdma/run"

    def attempt(*words: str | pathlib.Path) -> int:
        options = ("--build", build, "--timeout", RDMA_S)
        return run(sys.executable, "tests/rdma/run.py", *options, *words)

    def again(test: str) -> Counts:
        program, _, case = test.partition(" ")
        words = () if test == machine else ("--", build / program, f"--gtest_filter={case}")
        code = attempt(*words)
        return failure(test, exit_status(code)) if code else Counts(passed=1)

    code = attempt()
    if code == SKIPPED:
        return Counts(skipped=1)
    counts = guest_counts(build / "rdma" / "out")
    if code == 0:
        counts.passed += 1  # The machine itself.
    elif code == ENDED_EARLY or not counts.failed:
        counts.add(failure(machine, exit_status(code), machine if code == ENDED_EARLY else ""))
    return counts.can_be_run_again(again)


def guest_counts(out: pathlib.Path) -> Counts:
    """Count the cases of the programs that have run in the virtual machine."""
    counts = Counts()
    for report in out.glob("*.junit.xml"):
        program, _ = GUEST_PROGRAMS[int(report.name.partition("-")[0])]
        cases = junit_counts(report)
        cases.failures = [
            dataclasses.replace(one, test=f"{program} {one.name}") for one in cases.failures
        ]
        counts.add(cases)
    return counts


def wheel_suite() -> Counts:
    """Build the wheel and use it where our libraries are not; build where they are not."""
    folder = ROOT / "build" / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    if code := run("tools/wheel", folder):
        return failure("tools/wheel", exit_status(code))
    counts = Counts()
    for command in (("tests/wheel/run", *folder.glob("*.whl")), ("tests/wheel/bare",)):
        code = run(*command)
        if code == SKIPPED:
            counts.add(Counts(skipped=1))
        else:
            counts.add(failure(command[0], exit_status(code)) if code else Counts(passed=1))
    return counts


def oldest_suite() -> Counts:
    """Run a core of Python's tests with the oldest packages that are allowed."""
    report = ROOT / "build" / "oldest.junit.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    code = run(BIN / "python", "tests/oldest/run", "--report", report)
    counts = junit_counts(report) if report.exists() else Counts()
    if code and not counts.failed:
        counts.fail("tests/oldest/run", exit_status(code))
    return counts


def python_with(listed: pathlib.Path, folder: pathlib.Path) -> pathlib.Path | None:
    """Return a Python that has the packages of a list; None where they do not install.

    It is in `folder`, beside .venv, whose packages it sees: the list has what setup does not
    install.
    """
    stamp, python = folder / "requirements.txt", folder / "bin" / "python"
    if stamp.exists() and stamp.read_bytes() == listed.read_bytes():
        return python
    if run(BIN / "python", "-m", "venv", "--clear", folder):
        return None
    (ours,) = (ROOT / ".venv" / "lib").glob("python*/site-packages")
    (theirs,) = (folder / "lib").glob("python*/site-packages")
    (theirs / "beside.pth").write_text(f"{ours}\n")
    # Without what they depend on: the list has it, and no other torch.
    install = (python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", listed)
    if run(*install, environment={"PIP_DISABLE_PIP_VERSION_CHECK": "1"}):
        return None
    launcher = folder / "bin" / "torchrun"  # The one of .venv would run .venv's Python.
    launcher.write_text(f'#!/bin/sh\nexec "{python}" -m torch.distributed.run "$@"\n')
    launcher.chmod(0o755)
    shutil.copy(listed, stamp)
    return python


def frameworks_suite(
    folder: str = "build-frameworks",
    listed: str = "tests/frameworks/requirements.txt",
    *options: str,
) -> Counts:
    """Train with each framework that there is; in an environment that has them all."""
    python = python_with(ROOT / listed, ROOT / folder)
    if python is None:
        return failure(listed, "was not installed, see above")
    environment = INSTALLED | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    return pytest_suite("tests/frameworks", environment, *options, name=folder, python=python)


def tensorflow_suite() -> Counts:
    """Read with TensorFlow, for CPUs, in an environment of its own: 1.6 GB."""
    listed = "tests/frameworks/requirements-tensorflow.txt"
    return frameworks_suite("build-tensorflow", listed, "-k", "tensorflow")


def fuzz_suite() -> Counts:
    """Run each fuzz target for a short time, from what it found before."""
    if not CLANG.make("fuzz-targets"):
        return unbuilt(CLANG.folder)

    def verdict(target: fuzzing.Target) -> Counts:
        found = target.run(FUZZ_SECONDS)
        print(f"fuzz {target.name}: {'FAILED' if found else 'ok'}", flush=True)
        said = f"see {target.findings}\n{found}"
        return failure(f"fuzz {target.name}", said) if found else Counts(passed=1)

    counts = Counts()
    for one in fuzzing.run_all(fuzzing.targets(ROOT / CLANG.folder), verdict):
        counts.add(one)
    return counts


def changed_rooms_suite() -> Counts:
    """Run the unit and Python tests of the rooms that differ from main."""
    python_tests = sorted(path.name for path in (ROOT / "tests" / "python").glob("test_*.py"))
    selection = rooms.select(rooms.changed(ROOT), python_tests)
    if selection.everything:
        selection = rooms.Selection({"unit"}, set(python_tests))
    print("rooms:", *sorted(selection.suites), *sorted(selection.python), flush=True)
    counts = Counts()
    if selection.suites:
        counts.add(PLAIN.meson_test(*sorted(selection.suites)))
    if selection.python:
        counts.add(pytest_suite("tests/python", INSTALLED, files=sorted(selection.python)))
    return counts


SUITES: dict[str, tuple[str, Callable[[], Counts]]] = {
    "style": ("layers, headers, formatting, words", lambda: PLAIN.meson_test("style")),
    "plain": (
        "what a sanitized build leaves out: the library as installed, minutes of computing",
        lambda: PLAIN.meson_test("plain"),
    ),
    "unit": ("C++ unit tests", lambda: PLAIN.meson_test("unit", without=ALONE_SUITES)),
    "conformance": (
        "every form of each seam",
        lambda: PLAIN.meson_test("conformance", without=ALONE_SUITES),
    ),
    "crash": ("kills at every step", crash_suite),
    "chaos": (
        f"a daemon that is killed, stopped, cut off and full, for {CHAOS_SECONDS} s",
        lambda: chaos_suite(f"--seconds={CHAOS_SECONDS}"),
    ),
    "python": (
        "pytest over the installed package",
        lambda: pytest_suite("tests/python", INSTALLED, "-m", "not alone", *IN_PROCESSES),
    ),
    "models": (
        "each model of the product against it, for half a minute",
        lambda: pytest_suite("tests/models", INSTALLED),
    ),
    "training": (
        "training scripts with accelerate and Lightning, on several ranks",
        lambda: pytest_suite("tests/frameworks", INSTALLED, files=TRAINING),
    ),
    "frameworks": ("with every framework there is; not by default", frameworks_suite),
    "tensorflow": ("tf.data, with TensorFlow for CPUs; not by default", tensorflow_suite),
    "rdma": ("what wants an RDMA device, in a virtual machine", rdma_suite),
    "clang": (
        "unit, conformance by clang 14 under Address- and UndefinedBehaviorSanitizer",
        lambda: CLANG.meson_test("unit", "conformance", without=ALONE_SUITES, jobs=SANITIZED_JOBS),
    ),
    "tsan": (
        "the threaded ones under ThreadSanitizer",
        lambda: TSAN.meson_test(*THREADED, without=ALONE_SUITES),
    ),
    "fuzz": (f"each target for {FUZZ_SECONDS} s", fuzz_suite),
    "wheel": ("the wheel and a build without our libraries; not by default", wheel_suite),
    "oldest": ("the oldest packages that are allowed; not by default", oldest_suite),
    "changed": ("unit and Python tests of the rooms that differ from main", changed_rooms_suite),
}
# Tests that a suite leaves out: they measure short times. They run when the lanes have ended.
ALONE: dict[str, Callable[[], Counts]] = {
    "unit": lambda: PLAIN.meson_test("alone-unit", jobs=1),
    "conformance": lambda: PLAIN.meson_test("alone-conformance", jobs=1),
    "python": lambda: pytest_suite("tests/python", INSTALLED, "-m", "alone", name="alone"),
    "clang": lambda: CLANG.meson_test(*ALONE_SUITES, jobs=1),
    "tsan": lambda: TSAN.meson_test(*ALONE_SUITES, jobs=1),
}
QUICK = ("style", "changed", "conformance")
# Suites of the second compiler: it builds while the suites before them run, which mostly wait.
SECOND = ("clang", "fuzz")
# The same tests as clang's in one more build of everything.
AGAIN = ("unit", "conformance", "tsan")
# A part of what the others run.
PARTS = ("changed",)
# Suites that are made anew, and slowly: only by name.
BY_NAME = ("wheel", "oldest", "frameworks", "tensorflow")
# Suites that get the time that the others leave over.
BESIDE = ("style", "fuzz")
# Lanes run beside each other, the suites of a lane one after another. Half of the tests wait more
# than they compute, so two lanes keep two processors busy. A suite of no lane runs after them:
# `chaos` gives each request of its clients a time limit.
LANES = (
    ("changed", "plain", "unit", "conformance", "clang", "tsan"),
    ("rdma", "python", "models", "training", "crash"),
)


def steady_tests(words: Sequence[str], times: int) -> Counts:
    """Run tests `times` times each, beside a load: those named, or those that differ from main."""
    if not PLAIN.make("build.ninja"):
        return unbuilt(PLAIN.folder)
    sources = PLAIN.sources()
    try:
        named = steadiness.named(ROOT, words, sources.values())
    except ValueError as error:
        return failure("--steady", str(error))
    chosen = named if words else steadiness.differing(ROOT, sources)
    print("\n".join(chosen.lines()), flush=True)
    # Before the load: everything that a test may start.
    if not PLAIN.make("all", *PLAIN.programs_of(chosen.programs)):
        return unbuilt(PLAIN.folder)
    counts = Counts()
    with steadiness.load():
        for program, cases in chosen.programs.items():
            counts.add(PLAIN.repeat(program, cases, times))
        for folder, files in chosen.by_folder().items():
            built = folder in ("tests/crash", "tests/chaos")  # As in their suites.
            where = {"FFRECORD_BUILD_DIR": str(ROOT / PLAIN.folder)} if built else INSTALLED
            counts.add(pytest_suite(folder, where, "--times", str(times), files=files))
    return counts


def begin_second_build(names: Sequence[str]) -> None:
    """Let the second compiler build beside the suites that come before its own."""
    if names[0] in SECOND or not set(SECOND) & set(names):
        return
    if PLAIN.make():  # First what is wanted first.
        CLANG.make_beside(*EVERYTHING, "fuzz-targets")


class Results:
    """The results of the suites that have ended; several threads add to them."""

    def __init__(self) -> None:
        """Start with none."""
        self.total = Counts()
        self.lines: list[str] = []
        self._lock = threading.Lock()

    def run(self, name: str, what: str, suite: Callable[[], Counts]) -> None:
        """Run a suite."""
        say(f"== {name}: {what}")
        start = time.monotonic()
        counts = suite()
        with self._lock:
            self.total.add(counts)
            self.lines.append(f"{name:18} {counts} ({time.monotonic() - start:.0f} s)")
            print(self.lines[-1], flush=True)

    def run_in_lane(self, name: str) -> None:
        """Run a suite; show what it prints when it has ended."""
        with tempfile.TemporaryFile("w+", errors="replace") as THREAD.file:
            self.run(name, *SUITES[name])
            THREAD.file.seek(0)
            print(THREAD.file.read(), flush=True)

    def run_beside(self, name: str) -> None:
        """Run a suite at the lowest priority."""
        # Lowers this thread, and all that it starts; Meson's tests begin new sessions.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        THREAD.wrapper = IDLE
        self.run_in_lane(name)


def run_all(names: Sequence[str]) -> Results:
    """Run those suites in their lanes, then what they left out, one test at a time."""
    results = Results()
    pools = [concurrent.futures.ThreadPoolExecutor(max_workers=1) for _ in (*LANES, BESIDE)]
    begun: list[list[concurrent.futures.Future[None]]] = [[] for _ in pools]
    try:
        # A single suite's output is shown at once.
        for pool, suites, lane in zip(pools, begun, (*LANES, BESIDE), strict=True):
            run = results.run_beside if lane is BESIDE else results.run_in_lane
            suites += [pool.submit(run, name) for name in lane if name in names and len(names) > 1]
        for suite in itertools.chain(*begun[:-1]):
            suite.result()
        for name in names:
            if len(names) == 1 or name not in itertools.chain(*LANES, BESIDE):
                results.run(name, *SUITES[name])
            if name in ALONE:
                results.run(f"{name}, alone", "tests that measure short times", ALONE[name])
        for suite in begun[-1]:
            suite.result()
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)  # After Ctrl-C no other begins.
    return results


def compiler_cache() -> str:
    """Say how many compilations of this run, with its set-up, the compiler cache spared."""
    log = os.environ.get("CCACHE_STATSLOG")
    if not log or not os.path.exists(log):
        return "not counted"
    words = pathlib.Path(log).read_text().split("\n")
    os.unlink(log)
    found = sum(word in ("direct_cache_hit", "preprocessed_cache_hit") for word in words)
    return f"{found} of {found + words.count('cache_miss')} compilations found"


def wanted() -> argparse.Namespace:
    """Return what the command line asks for; `suites` has what is to be run."""
    parser = argparse.ArgumentParser(
        prog="tools/test",
        description="Build and run the test suites.",
        epilog="\n".join(f"  {name:12} {what}" for name, (what, _) in SUITES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help="which to run; with --steady which tests"
    )
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--all", action="store_true", help=f"also {', '.join(AGAIN)}")
    parser.add_argument(
        "--steady",
        action="store_true",
        help="the tests that differ from main, or those named, many times beside a load",
    )
    parser.add_argument("--times", type=int, default=steadiness.TIMES, help="of --steady")
    parser.add_argument("--seed", default=SEED, help=f"a number, or `fresh`; {SEED} by default")
    arguments = parser.parse_args()
    arguments.landing = not (arguments.suites or arguments.quick or arguments.steady)
    if arguments.steady:
        return arguments
    unknown = [name for name in arguments.suites if name not in SUITES]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(SUITES)}")
    left_out = (*PARTS, *BY_NAME, *(() if arguments.all else AGAIN))
    every = [name for name in SUITES if name not in left_out]
    arguments.suites = arguments.suites or (list(QUICK) if arguments.quick else every)
    return arguments


def run_wanted(arguments: argparse.Namespace) -> Results:
    """Run what the command line asks for."""
    if not arguments.steady:
        begin_second_build(arguments.suites)
        return run_all(arguments.suites)
    results = Results()
    results.run(
        "steady",
        f"each test {arguments.times} times, beside a load",
        lambda: steady_tests(arguments.suites, arguments.times),
    )
    return results


def main() -> int:
    """Run what is asked for; print the counts; return the exit code."""
    arguments = wanted()
    if arguments.seed != "fresh":
        os.environ["FFRECORD_TEST_SEED"] = arguments.seed
    # The project's programs and Python first, for tests that start them.
    os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"
    start = time.monotonic()
    if (free := shutil.disk_usage(ROOT).free) < DISK_BYTES:
        print(f"{free >> 30} GiB of disk are free; a whole run needs {DISK_BYTES >> 30} at first")
    results = run_wanted(arguments)
    total = results.total
    found = unsteady.judge(total, UNSTEADY) if arguments.landing else []
    print("\n== the slowest\n" + "\n".join(total.slowest(SLOWEST)))
    if total.failures:
        print("\n== what failed\n" + "\n".join(map(str, total.failures)))
    if found:
        print(f"\n== unsteady, now in {UNSTEADY.relative_to(ROOT)}: commit it, or mend them first")
        print("\n".join(map(str, found)))
    print("\n== summary\n" + "\n".join(results.lines))
    print(f"{'cache':18} {compiler_cache()}")
    print(f"{'all':18} {time.monotonic() - start:.0f} s")
    print(total)
    # A change of pages has no test to repeat.
    return 1 if total.failed or not (total.passed or arguments.steady) else 0


if __name__ == "__main__":
    sys.exit(main())
