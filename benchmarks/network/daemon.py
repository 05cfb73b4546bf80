"""Random batches from the daemon, by shared memory and TCP, against the embedded reader, iperf3.

In parts, of which --part runs one. One daemon on loopback serves two files: records of 110 KB
(log-normal), batches of 128, and records of 4 KiB, batches of 256. Clients are one process, one
thread, one call at a time, and verify every record's checksum. The embedded arms read the same
files without a daemon. Limits in the same rounds: iperf3 with one stream over loopback, memcpy out
of the mapped file, and two processes that do nothing but send and receive as many bytes as a batch
of small records. Two peers are asked for as many: redis, MGET of 256 values, and nginx, one request
of 256 ranges, if it is installed. CPU seconds are those of both sides. The tail of TCP batches of
4 KiB is that of calls at 70 % of the rate that the same round reached, over the bare exchange's
tail at that very rate. Then up to 64 clients at one time, processes of their own, and a bare
exchange with 64 (bare_exchange.h says what it leaves out); 9,900 connections that say nothing; a
start with 100,000 extents; four ranks that read one epoch from a cold disk, with and without
prefetch hints; and two simulated disks against one of the same speed (slow_disks.cpp).
"""

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Callable

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "arms"))

import crowd
from prefetch_hints import PrefetchHints
from reads import Reads
from served import LARGE_BATCH, SMALL_BATCH, SMALL_BYTES, Programs, over
from slow_disks import SlowDisks


def run_reads(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """Compare the daemon's transports with what they replace, cold and warm."""
    return Reads(settings, programs).outcome()


def run_crowd(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """See what many clients are given."""
    with programs.daemon() as daemon:
        location = f"{daemon.address}/small?transport=tcp"
        asked = daemon.program, daemon.pid, location
        figures = crowd.clients(asked, SMALL_BATCH, SMALL_BYTES, 2, settings.rounds)
    return harness.Outcome("records/s", [], {}, {}, figures)


def run_idle(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """See what those cost who say nothing."""
    with programs.daemon() as daemon:
        rounds = 2 if settings.quick else 5
        figures = crowd.idle(daemon.pid, daemon.port, daemon.admin_port, rounds)
    return harness.Outcome("records/s", [], {}, {}, figures)


def run_start(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """See how soon a daemon with many extents answers."""
    figures = crowd.start(settings, programs.server, 3 if settings.quick else 7)
    return harness.Outcome("records/s", [], {}, {}, figures)


def run_plans(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """See what a prefetch hint of an epoch is worth."""
    ranks = PrefetchHints(settings, programs.server, programs.data())
    arms = [ranks.arm(dataset, plan) for dataset in ("large", "small") for plan in (True, False)]
    values = harness.interleave(arms, settings.rounds)
    shares = ranks.read_share
    extra = {
        f"plan_ahead_{dataset}_read_ratio": over(
            shares[f"ranks_{dataset}_hinted"], shares[f"ranks_{dataset}_unhinted"]
        )
        for dataset in ("large", "small")
    }
    return harness.Outcome(
        unit="records/s",
        arms=arms,
        values=values,
        ratios={
            "plan_ahead_gain": ("ranks_small_hinted", "ranks_small_unhinted"),
            "plan_ahead_large_gain": ("ranks_large_hinted", "ranks_large_unhinted"),
        },
        figures=extra | {"plan_ahead_wasted_bytes": ranks.wasted},
    )


def run_disks(settings: harness.Settings, programs: Programs) -> harness.Outcome:
    """See what a second disk is worth."""
    disks = SlowDisks(settings, programs.folder, programs.small)
    arms = [disks.arm(2), disks.arm(1)]
    return harness.Outcome(
        unit="records/s",
        arms=arms,
        values=harness.interleave(arms, settings.rounds),
        ratios={"two_disks_gain": ("slow_disks_2", "slow_disks_1")},
        figures={},
    )


PARTS: dict[str, Callable[[harness.Settings, Programs], harness.Outcome]] = {
    "reads": run_reads,
    "crowd": run_crowd,
    "disks": run_disks,
    "idle": run_idle,
    "start": run_start,
    "plans": run_plans,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Take --part."""
    parser.add_argument("--part", choices=sorted(PARTS), help="Run only this part; all by default.")


def bench(settings: harness.Settings) -> harness.Outcome:
    """Run all parts, or one, one after the other."""
    wanted = settings.options.part
    with tempfile.TemporaryDirectory(dir=settings.scratch) as name:
        programs = Programs(settings, pathlib.Path(name))
        found = [run(settings, programs) for part, run in PARTS.items() if wanted in (None, part)]
    whole = found[0]
    for part in found[1:]:
        whole.arms += part.arms
        whole.values |= part.values
        whole.ratios |= part.ratios
        whole.figures |= part.figures
        whole.notes += part.notes
    whole.notes.append(
        f"{programs.count:,} records of 110 KB in batches of {LARGE_BATCH}, 100,000 of 4 KiB in "
        f"batches of {SMALL_BATCH}, {settings.rounds} rounds; costs are lower the better"
    )
    return whole
