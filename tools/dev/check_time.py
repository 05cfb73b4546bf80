"""Fail if the product reads a clock or waits for a time beside the clock of `libffrecord/base`.

A test replaces that clock by its own, so that no test has to wait for a time or to be in time. What
goes by another clock would wait all the same.

Usage: check_time.py SOURCE_ROOT
"""

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


if __name__ == "__main__":
    sys.exit("\n".join(violations(pathlib.Path(sys.argv[1]))) or 0)
