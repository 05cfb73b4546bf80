"""A cluster of daemons and etcd on one machine: faults, rates, repair, metadata.

In parts, of which --part runs one. Each process has a namespace of its own, with a link whose rate
is limited, if this is root and `ip` and `tc` are installed; else all are on loopback, without cuts
and caps. The clients' programs verify every checksum.

- `failover`: one of three daemons is killed (kill -9), stopped (SIGSTOP) or cut off for two
  seconds while clients read; the failover is the longest batch from then on, less the median of
  the batches before the fault. The control arm `none` is the same without a fault.
- `metadata`: the same for etcd's leader, and for all of etcd, while one client publishes. A
  publication resumes so long after etcd has a quorum.
- `scaling`, `writing`: rates by those of the links, which iperf3 measures in the same rounds.
- `repair`: a node comes back empty and pulls its extents at a capped rate.
- `origin`: an epoch of several ranks that read an object through three nodes which fetch it, cold
  and cached, by that of the same ranks reading the store; the store's link is the narrow one.
- `erasure`: names of class ec:4+2 by those of two replicas, published and read; an epoch that
  begins when a node has been killed, and the next one, by one with all nodes.
- `operations`: calls of etcd per record and per opening, by etcd's own counters.
- `placement`, `simulator`: computations of a large cluster; the simulated one of tests/cluster.

Everything is removed afterwards, on Ctrl-C and SIGTERM too.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "arms"))

import capped
import counting
import faults
import origins
import repairing
import striping

Run = Callable[[harness.Settings], harness.Outcome]


def faults_of(settings: harness.Settings) -> int:
    """How many faults of each kind."""
    return int(settings.options.faults) or (6 if settings.quick else 30)


PARTS: dict[str, Run] = {
    "failover": lambda settings: faults.run_failover(settings, faults_of(settings)),
    "metadata": lambda settings: faults.run_metadata(settings, max(2, faults_of(settings) // 3)),
    "scaling": capped.run_scaling,
    "writing": capped.run_writing,
    "repair": lambda settings: repairing.run_repair(settings, 4 if settings.quick else 8),
    "origin": origins.run_origin,
    "erasure": striping.run_erasure,
    "operations": counting.run_operations,
    "placement": counting.run_placement,
    "simulator": counting.run_simulator,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Take --part and --faults."""
    parser.add_argument("--part", choices=sorted(PARTS), help="Run only this part; all by default.")
    parser.add_argument(
        "--faults", type=int, default=0, help="Faults of each kind; 30, with --quick 6."
    )


def bench(settings: harness.Settings) -> harness.Outcome:
    """Run all parts, or one, one after the other; one that this machine cannot run is noted."""
    wanted = settings.options.part
    whole = harness.Outcome("bytes/s", [], {}, {})
    for name, run in PARTS.items():
        if wanted not in (None, name):
            continue
        try:
            part = run(settings)
        except harness.Unable as error:
            if wanted is not None:
                raise
            whole.notes.append(f"without {name}: {error}")
            print(f"{name}: {error}", file=sys.stderr)
            continue
        whole.arms += part.arms
        whole.values |= part.values
        whole.ratios |= part.ratios
        whole.figures |= part.figures
        whole.notes += part.notes
    return whole
