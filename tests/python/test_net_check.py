"""Goal: what is wrong or slow between ranks is named before a run, and what is well is not.

Method: ranks as processes, one of which sends wrong numbers, or fails; made-up figures of a slow
link and a slow rank, for real ones depend on the machine.
"""

import dataclasses
import itertools
import json
import os
import subprocess
import sys

import pytest
import torch

from ffrecord.distributed import net_check
from ffrecord.distributed.net_check import Pair, slow_links, wrong_links
from ranks import run_ranks

WORLD = 3


def report_of(rank: int, world: int, lies: bool) -> object:
    del world
    if lies and rank == 1:
        honest = net_check._fill

        def fill(array: torch.Tensor, rank: int) -> None:
            honest(array, rank)
            array[-1] += 1

        net_check._fill = fill
    return dataclasses.asdict(net_check.check(size_bytes=1 << 20, repeats=2, timeout_s=20))


def test_every_pair_and_every_collective_is_tried_and_all_ranks_report_the_same() -> None:
    reports = run_ranks(report_of, WORLD, False)

    assert all(report == reports[0] for report in reports)
    report = reports[0]
    assert report["wrong"] == []
    tried = [(pair["first"], pair["second"]) for pair in report["pairs"]]
    assert tried == list(itertools.combinations(range(WORLD), 2))
    for pair in report["pairs"]:
        assert pair["is_right"] and pair["shares_memory"] and pair["mbyte_s"] > 0
    assert {each["name"] for each in report["collectives"]} == {
        "all-reduce",
        "all-reduce by ring",
        "all-reduce by halving doubling",
        "all-reduce by recursive doubling",
        "all-reduce by double tree",
        "reduce-scatter",
        "all-gather",
        "broadcast",
    }


def test_a_rank_with_wrong_numbers_is_named_and_no_other() -> None:
    report = run_ranks(report_of, WORLD, True)[0]

    assert "rank 1 with all others: wrong sums" in report["wrong"]
    assert not any(line.startswith(("rank 0", "rank 2", "ranks")) for line in report["wrong"])


@pytest.mark.parametrize("world", [2, 3, 4, 7, 8])
def test_each_pair_meets_once(world: int) -> None:
    met = []
    for opponents in net_check._rounds(world):
        for rank, other in enumerate(opponents):
            if other is not None:
                assert opponents[other] == rank
                met.append((rank, other))
    assert sorted(met) == sorted(itertools.permutations(range(world), 2))


def pairs_of(world: int, slow: set[tuple[int, int]]) -> list[Pair]:
    return [
        Pair(a, b, False, 30.0, 100.0 if (a, b) in slow else 1000.0 + a, True)
        for a, b in itertools.combinations(range(world), 2)
    ]


def test_a_slow_link_is_named_by_its_ends_and_a_slow_rank_by_itself() -> None:
    assert slow_links(pairs_of(5, set()), 2.0) == []
    (line,) = slow_links(pairs_of(5, {(1, 3)}), 2.0)
    assert line.startswith("ranks 1 and 3 are slow over the network: 100 MB/s")
    (line,) = slow_links(pairs_of(5, {(0, 3), (1, 3), (2, 3), (3, 4)}), 2.0)
    assert line.startswith("rank 3 is slow to all others over the network: 100 MB/s")


def test_a_pair_that_failed_is_wrong_and_says_why() -> None:
    pairs = pairs_of(4, set())
    pairs[0] = dataclasses.replace(pairs[0], error="rank 1: connection refused", is_right=False)
    assert wrong_links(pairs) == ["ranks 0 and 1: rank 1: connection refused"]
    assert slow_links(pairs, 2.0) == []


def test_the_command_runs_as_each_rank_and_says_what_it_needs() -> None:
    command = [sys.executable, "-m", "ffrecord._cli.main", "net", "check"]
    alone = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    refused = subprocess.run(
        command, env=alone, capture_output=True, text=True, timeout=120, check=False
    )
    assert refused.returncode == 2
    assert "torchrun" in refused.stderr

    launched = subprocess.run(
        [
            *[sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
            *["--module", "ffrecord._cli.main", "net", "check", "--size", "64KiB", "--json"],
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    report = json.loads(launched.stdout)
    assert launched.returncode == 0, launched.stderr
    assert report["world_size"] == 2 and report["wrong"] == []
