"""Run fuzz targets: what tools/test and tests/fuzz/campaign share.

A target's corpus is kept in the build folder and only grows, so that each run begins where the last
one stopped. What makes a target fail is kept in `findings` beside it.
"""

import concurrent.futures
import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
HERE = pathlib.Path(__file__).resolve().parent
# One input may not take more than this: what takes longer is a finding.
TIMEOUT_S = 25
MEMORY_MAX_MIB = 2048


@dataclasses.dataclass(frozen=True)
class Target:
    """One program, built, with its corpus and what it has found."""

    name: str
    program: pathlib.Path
    corpus: pathlib.Path
    findings: pathlib.Path

    def run(self, seconds: int) -> str:
        """Fuzz so long; return what was found, with where the input lies; nothing if nothing."""
        self.findings.mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={seconds}", f"-timeout={TIMEOUT_S}"]
        limits += [f"-rss_limit_mb={MEMORY_MAX_MIB}", "-verbosity=0"]
        if seed := os.environ.get("FFRECORD_TEST_SEED"):
            limits.append(f"-seed={seed}")
        done = subprocess.run(
            [self.program, *limits, f"-artifact_prefix={self.findings}/", self.corpus],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return done.stderr[-4000:] if done.returncode else ""


def targets(build: pathlib.Path) -> list[Target]:
    """All targets of a build folder, with their first inputs made."""
    corpus = build / "corpus"
    subprocess.run([sys.executable, HERE / "make_corpus.py", corpus], check=True)
    found = []
    for program in sorted((build / "tests" / "fuzz").glob("*_fuzz")):
        if not program.is_file():
            continue
        name = program.name.removesuffix("_fuzz")
        (corpus / name).mkdir(parents=True, exist_ok=True)
        found.append(Target(name, program, corpus / name, build / "findings" / name))
    return found


def run_all(work: Iterable[Target], run: Callable[[Target], T]) -> list[T]:
    """Call `run` for each, as many at a time as there are processors; return what it returned."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(run, work))
