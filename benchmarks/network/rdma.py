"""Batch reads over RDMA in a virtual machine with soft-RoCE, against perftest and TCP there.

One guest, two emulated processors, one soft-RoCE device: ratios are between programs of one boot,
and no figure says what an adapter does. The daemon serves records of 64 KiB and of 4 KiB from its
page cache, in batches of 64 and 256; the client is one process, one call at a time, and verifies
each record's checksum. The limit is perftest's `ib_write_bw` with messages of the same size and as
many under way. Two ranks sum 4 MiB, each in a guest of its own with one emulated processor, joined
by a link; each sends and receives as much, so the bound is what `ib_write_bw` moves both ways at a
time. CPU seconds are those of daemon and client, or of the whole guest, whose software does the
work of an adapter and charges it to the process that happens to run. How much that is at least
perftest tells: of its two ends the one that writes is never idle.
"""

import contextlib
import importlib.util
import pathlib
import sys
import types

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUEST = ROOT / "benchmarks" / "network" / "rdma_guest.sh"
PAIR = ROOT / "benchmarks" / "network" / "rdma_pair.sh"
SEED = 5
# Size of a record, records in the file, records in a batch, messages under way.
SIZES = {"64k": (65_536, 400, 64, 16), "4k": (4_096, 4_000, 256, 128)}


def virtual_machine() -> types.ModuleType:
    """The module that runs a command in the guest: the tests' own."""
    spec = importlib.util.spec_from_file_location("rdma_run", ROOT / "tests" / "rdma" / "run.py")
    if spec is None or spec.loader is None:
        raise harness.Unable("tests/rdma/run.py is missing")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(machine: types.ModuleType, jobs: list[list[list[object]]]) -> dict[str, list[float]]:
    """Run the jobs, a list for each guest, which print "bench-ARM VALUE": values of each arm."""
    work = ROOT / "build" / "rdma-bench"
    words = [[[str(word) for word in job] for job in guest] for guest in jobs]
    try:
        done = machine.run_in_guests(words, work, 900.0)
    except machine.CannotRun as reason:
        raise harness.Unable(str(reason)) from reason
    values: dict[str, list[float]] = {}
    for job in done:
        if job.code != 0:
            raise harness.Unable(f"{job}: {job.log[-2000:]}{machine.consoles(work / 'out')}")
        for line in job.log.splitlines():
            key, _, value = line.partition(" ")
            if key.startswith("bench-"):
                values.setdefault(key.removeprefix("bench-"), []).append(float(value))
    return values


def bench(settings: harness.Settings) -> harness.Outcome:
    """Run all rounds of reads in one guest and of sums in two, and compare."""
    machine = virtual_machine()
    harness.foreign("qemu-system-x86_64", "qemu-system-x86")
    with contextlib.suppress(harness.Missing):
        harness.foreign("ib_write_bw", "perftest")
    files = []
    for name, (size, count, *_) in SIZES.items():
        path = settings.scratch / f"rdma-equal-{name}-{count}.ffr"
        if not path.exists():
            harness.run_json(
                harness.program(settings, "read-arm"), "make-equal", path, count, size, 1, SEED
            )
        files.append(path)
    build = settings.programs.parent
    reads = ["bash", GUEST, build, settings.rounds, 2 if settings.quick else 6, *files]
    pair = [[["bash", PAIR, build, settings.rounds, rank]] for rank in (0, 1)]
    values = {**run(machine, [[reads]]), **run(machine, pair)}

    def compared(ours: str, other: str) -> list[float]:
        return [a / b for a, b in zip(values[ours], values[other], strict=True)]

    figures = {
        "rdma_cpu_vs_tcp_cost": compared("rdma_64k_cpu", "tcp_64k_cpu"),
        "rdma_machine_cpu_vs_tcp_cost": compared("rdma_64k_machine_cpu", "tcp_64k_machine_cpu"),
    }
    if "perftest_64k" in values:
        values["perftest_64k_cpu"] = [
            1e9 / (rate * SIZES["64k"][0]) for rate in values["perftest_64k"]
        ]
        figures["perftest_cpu_vs_tcp_cost"] = compared("perftest_64k_cpu", "tcp_64k_cpu")
    what = {
        "rdma_64k": "64 KiB, RDMA",
        "perftest_64k": "64 KiB, ib_write_bw",
        "tcp_64k": "64 KiB, TCP",
        "rdma_4k": "4 KiB, RDMA",
        "perftest_4k": "4 KiB, ib_write_bw",
        "tcp_4k": "4 KiB, TCP",
        "reduce_rdma": "all-reduce of 4 MiB, RDMA",
        "reduce_bound": "4 MiB both ways, ib_write_bw",
        "reduce_tcp": "all-reduce of 4 MiB, TCP",
    }
    return harness.Outcome(
        unit="records/s, all-reduces/s",
        arms=[harness.Arm(key, text, lambda _: 0.0) for key, text in what.items()],
        values={key: values[key] for key in what if key in values},
        ratios={
            "rdma_64k_vs_perftest": ("rdma_64k", "perftest_64k"),
            "rdma_4k_vs_perftest": ("rdma_4k", "perftest_4k"),
            "rdma_64k_vs_tcp": ("rdma_64k", "tcp_64k"),
            "rdma_allreduce_vs_bound": ("reduce_rdma", "reduce_bound"),
            "rdma_allreduce_vs_tcp": ("reduce_rdma", "reduce_tcp"),
        },
        figures=figures,
        notes=[f"in emulated guests, {settings.rounds} rounds; costs are lower the better"],
    )
