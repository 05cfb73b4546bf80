"""Fail if the product reads a clock or waits for a time beside the clocks of its ground floors.

Those are `libffrecord/base` for C++ and `ffrecord/_base/clock.py` for Python. A test replaces them
by its own, so that no test has to wait for a time or to be in time. Code that uses another clock
would wait all the same.

Waits for other processes, such as `process.join(5)`, go by the machine's clock: no clock of a test
sees what another process does.

Usage: check_time.py SOURCE_ROOT
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

import tree

PRODUCT = ("libffrecord/", "server/", "client/")  # Others use only what is public.
BASE = "libffrecord/base"
HOME = (f"{BASE}/clock.h", f"{BASE}/timed_waits.h", f"{BASE}/timed_waits.cpp")
RULES = {
    r"\b(?:steady|system|high_resolution)_clock\b": f"Clock or WallClock, {BASE}/clock.h",
    r"::clock::now\b|\b(?!ffrecord|net)\w+::Clock::now\b": f"Clock::now(), {BASE}/clock.h",
    r"\b(?:clock_gettime|gettimeofday|timespec_get)\(|(?:\bstd)?::time\(": f"{BASE}/clock.h",
    r"\bsleep_(?:for|until)\b|\b(?:usleep|nanosleep)\(|::sleep\(": f"SleepFor(), {HOME[1]}",
    r"(?:\.|->)wait_(?:for|until)\(": f"WaitUntil() or WaitFor(), {HOME[1]}",
    r"::p?poll\(|::epoll_p?wait2?\(": f"PollFor() or EpollFor(), {HOME[1]}",
    r"\btimerfd_\w+": f"ClockTimer, {HOME[1]}",
}
COMMENT = re.compile(r"//.*")

PACKAGE = "python/ffrecord/"
PYTHON_HOME = f"{PACKAGE}_base/clock.py"
READS = {"monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns", "time_ns"}
# Methods of the standard library that wait until a time, which is an argument or `timeout=`.
WAITS = {"wait", "wait_for", "join", "result", "exception", "acquire"}
WAITS_BY_NAME = {*WAITS, "get", "put"}
TIME = re.compile(r"(?:^|_)(?:s|ms|seconds|timeout|left)$", re.IGNORECASE)


def violations(root: pathlib.Path) -> Iterator[str]:
    """One line for each call that goes by another clock; public headers only name time points."""
    rules = [(re.compile(pattern), instead) for pattern, instead in RULES.items()]
    for path in tree.files(root, ".h", ".cpp"):
        name = path.relative_to(root).as_posix()
        if not name.startswith(PRODUCT) or "/include/" in name or name in HOME:
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            code = COMMENT.sub("", line)
            for rule, instead in rules:
                if match := rule.search(code):
                    yield f"{name}:{number}: {match[0]!r}: use {instead}"
    for path in tree.files(root, ".py"):
        name = path.relative_to(root).as_posix()
        if name.startswith(PACKAGE) and name != PYTHON_HOME:
            for line, found in other_clocks(ast.parse(path.read_text())):
                yield f"{name}:{line}: {found!r}: use {PYTHON_HOME}"


def other_clocks(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Reads of a clock and waits for a time beside the package's clock, with their lines."""
    if is_waited_for(node):
        return
    if is_clock(node) or (isinstance(node, ast.Call) and is_timed_wait(node)):
        yield node.lineno, ast.unparse(node)  # type: ignore[attr-defined]
    for child in ast.iter_child_nodes(node):
        yield from other_clocks(child)


def is_waited_for(node: ast.AST) -> bool:
    """Whether it is a function for `clock.wait`: its only argument is `limit_s`."""
    if not isinstance(node, ast.FunctionDef | ast.Lambda):
        return False
    return [argument.arg for argument in node.args.args] == ["limit_s"]


def is_clock(node: ast.AST) -> bool:
    """Whether it is a function of another clock, or imports some."""
    if isinstance(node, ast.ImportFrom):
        return node.module in ("time", "select")
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    module, name = node.value.id, node.attr
    return (
        (module == "time" and name in READS)
        or (module in ("time", "asyncio") and name == "sleep")
        or module == "select"
    )


def is_timed_wait(call: ast.Call) -> bool:
    """Whether it waits until a time for something of this process."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in WAITS_BY_NAME:
        return False
    receiver = ast.unparse(call.func.value)
    is_text = isinstance(call.func.value, ast.Constant)  # ", ".join()
    if receiver == "clock" or receiver.split(".")[-1] == "process" or is_text:
        return False
    arguments = call.args if call.func.attr in WAITS else []
    named = (word.value for word in call.keywords if word.arg == "timeout")
    return any(is_time(argument) for argument in [*arguments, *named])


def is_time(argument: ast.expr) -> bool:
    """Whether it is a number, or computed from names of times, which end in `_s`."""
    if isinstance(argument, ast.Constant):
        return isinstance(argument.value, int | float) and not isinstance(argument.value, bool)
    if isinstance(argument, ast.Call) and ast.unparse(argument.func).endswith("timedelta"):
        return False  # torch's own waits.
    names = (
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(argument)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    return any(TIME.search(name) for name in names)


if __name__ == "__main__":
    sys.exit("\n".join(violations(pathlib.Path(sys.argv[1]))) or 0)
