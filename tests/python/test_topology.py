"""Goal: what a plan promises is so: steps add up, certificates count, simulated times follow.

Method: collectives are run on paper (every rank's set of summed parts), certificates are checked
against counts made another way, times against those that can be worked out by hand.
"""

import collections
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import run
from ffrecord import topology as topo

HOST_RATE = 100e9 / 8  # Bytes/s of a host's cable, by default.
SHAPES = [(2, 2, 1), (4, 4, 1), (8, 4, 1), (4, 8, 2), (16, 8, 1), (2, 8, 4), (16, 16, 1)]


def bytes_sent(steps: list[topo.Step], ranks: int) -> list[float]:
    sent = np.zeros(ranks)
    for step in steps:
        np.add.at(sent, step.sources, step.size * step.repeat)
    return list(sent)


@given(ranks=st.integers(2, 300), size=st.floats(1, 1e9))
def test_ring_and_halving_doubling_send_what_their_bounds_say(ranks: int, size: float) -> None:
    bound = 2 * (ranks - 1) / ranks * size
    assert bytes_sent(topo.collective("ring", ranks, size), ranks) == pytest.approx([bound] * ranks)

    sent = bytes_sent(topo.collective("halving-doubling", ranks, size), ranks)
    power = 1 << (ranks.bit_length() - 1)
    exchange = 2 * (power - 1) / power * size
    folded = exchange + 1.5 * size if power != ranks else exchange
    assert max(sent) == pytest.approx(folded)


@given(ranks=st.integers(2, 256))
def test_no_rank_passes_on_in_both_trees_and_none_has_three_children(ranks: int) -> None:
    up = topo.collective("tree", ranks, 1e6)[0]
    inner = []
    for tree in (slice(0, ranks - 1), slice(ranks - 1, None)):
        parents = dict(zip(up.sources[tree].tolist(), up.targets[tree].tolist(), strict=True))
        assert len(parents) == ranks - 1
        assert max(collections.Counter(parents.values()).values()) <= 2
        (root,) = set(range(ranks)) - set(parents)
        for rank in range(ranks):
            steps = 0
            while rank != root:
                rank, steps = parents[rank], steps + 1
                assert steps <= ranks.bit_length()
        inner.append(set(parents.values()))
    assert not inner[0] & inner[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_hdrm_gives_every_message_a_direct_link_of_its_own(shape: tuple[int, int, int]) -> None:
    network = topo.bigraph(*shape)
    ranks = len(network.hosts)
    placement = topo.place("hdrm", network, ranks)
    assert sorted(placement.hosts.tolist()) == list(range(ranks))
    for step in topo.collective("halving-doubling", ranks, 1e6):
        used: collections.Counter[int] = collections.Counter()
        for source, target in zip(step.sources, step.targets, strict=True):
            way = network.route(int(placement.hosts[source]), int(placement.hosts[target]))
            assert len(way) == 3  # The host's cable, one between the layers, the host's cable.
            used.update(way)
        assert all(count <= network.links[link].lanes for link, count in used.items())
    steps = topo.collective("halving-doubling", ranks, 1e6)
    assert topo.certify(network, placement, steps).free_of_contention


def test_hdrm_refuses_what_it_cannot_place() -> None:
    with pytest.raises(ValueError, match="choose k and h so that 2"):
        topo.place("hdrm", topo.bigraph(4, 4), 16)
    with pytest.raises(ValueError, match="powers of two"):
        topo.place("hdrm", topo.bigraph(3, 4), 24)
    with pytest.raises(ValueError, match="BiGraph"):
        topo.place("hdrm", topo.fat_tree(4, 4, 4), 16)


@pytest.mark.parametrize("rule", ["sequential", "random", "round-robin"])
def test_certificates_name_the_link_that_is_shared(rule: str) -> None:
    network = topo.bigraph(4, 4)
    steps = topo.collective("halving-doubling", 32, 1e6)
    certificate = topo.certify(network, topo.place(rule, network, 32, 1), steps)
    offender = certificate.offender()
    assert offender is not None
    assert certificate.loads[offender.link] == certificate.flows_max == offender.flows_max > 1


def test_a_dead_link_breaks_the_certificate_and_traffic_goes_around() -> None:
    network = topo.bigraph(4, 4)
    steps = topo.collective("halving-doubling", 32, 1e6)
    placement = topo.place("hdrm", network, 32)
    broken = network.without(["U1->L2"])
    certificate = topo.certify(broken, placement, steps)
    assert not certificate.free_of_contention
    assert certificate.loads.get("U1->L2") is None
    assert topo.collective_seconds(broken, placement, steps) > topo.collective_seconds(
        network, placement, steps
    )
    with pytest.raises(ValueError, match="there is no link"):
        network.without(["U1->L9"])
    with pytest.raises(ValueError, match=r"no route from u0\.0"):
        network.without([f"U0->L{j}" for j in range(4)]).route(0, 31)


def test_storage_traffic_is_placed_beside_the_collective() -> None:
    network = topo.bigraph(4, 4)
    steps = topo.collective("halving-doubling", 32, 1e6)
    placement = topo.place("hdrm", network, 32)
    assert not topo.certify(network, placement, steps, storage=[(0, 20)]).free_of_contention


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_without_contention_the_time_is_that_of_the_formula(ranks: int) -> None:
    network = topo.bigraph_for(ranks) if ranks > 2 else topo.bigraph(1, 1)
    placement = topo.place("hdrm", network, ranks)
    size, start_up = 1e8, 30e-6
    steps = topo.collective("halving-doubling", ranks, size)
    expected = 2 * np.log2(ranks) * start_up + 2 * (ranks - 1) / ranks * size / HOST_RATE
    seconds = topo.collective_seconds(network, placement, steps, start_up_s=start_up)
    assert seconds == pytest.approx(expected)


def test_flows_share_a_link_max_min_fairly() -> None:
    """Three hosts of one leaf send to another leaf over one cable; one wants little."""
    cables = [topo.Cable(f"a{i}", "A", 1, 10.0) for i in range(3)]
    cables += [topo.Cable(f"b{i}", "B", 1, 10.0) for i in range(3)] + [
        topo.Cable("A", "B", 1, 10.0)
    ]
    network = topo.Network.of([f"{leaf}{i}" for leaf in "ab" for i in range(3)], cables)
    both = topo.Step("two", np.array([0, 1]), np.array([3, 4]), np.array([40.0, 80.0]))
    placement = topo.place("sequential", network, 6)
    # 5 each until the first ends at 8 s, then 10 for the 40 that the second has left.
    assert topo.collective_seconds(network, placement, [both], start_up_s=0) == pytest.approx(12)
    # A flow that wants 2 leaves 4 each, then 8: 10 s, and 40 left at 8 is 5 s.
    beside = [topo.Flow(2, 5, 2.0)]
    seconds = topo.collective_seconds(network, placement, [both], start_up_s=0, storage=beside)
    assert seconds == pytest.approx(15)


def test_overlap_hides_what_fits_beside_compute() -> None:
    training = topo.Training(compute_s=3.0, bucket_sizes=[1.0, 1.0], backward_part=2 / 3)
    # Buckets are ready at 2 and 3 s.
    assert topo.training_step(training, [0.5, 0.25]).exposed_s == pytest.approx(0.25)
    assert topo.training_step(training, [2.0, 1.0]).exposed_s == pytest.approx(2.0)
    assert topo.training_step(training, [0.0, 0.0]).efficiency == 1.0


def test_the_published_order_of_placements_holds() -> None:
    """Sequential, random and round-robin placement cost what they cost by the page's table."""
    network = topo.bigraph(8, 4)
    steps = [s for s in topo.collective("halving-doubling", 64, 1e8) if s.name[:6] == "reduce"]
    free = sum(step.size_max for step in steps) / HOST_RATE
    cost = {}
    for rule in topo.PLACEMENTS:
        placement = topo.place(rule, network, 64, 1)
        cost[rule] = topo.collective_seconds(network, placement, steps, start_up_s=0) / free
    assert cost["hdrm"] == pytest.approx(1)
    assert cost["sequential"] == pytest.approx(1.66, rel=0.15)
    assert cost["random"] == pytest.approx(3.23, rel=0.25)
    assert cost["round-robin"] == pytest.approx(3.72, rel=0.15)


def test_search_beats_what_it_starts_from() -> None:
    network = topo.fat_tree(4, 4, 2)
    steps = topo.collective("ring", 16, 1e6)
    shuffled = topo.place("random", network, 16, 3)
    found = topo.search(network, steps, 16, seed=3)
    assert sorted(found.hosts.tolist()) == list(range(16))
    cost = topo.certify(network, found, steps).cost
    assert cost <= topo.certify(network, shuffled, steps).cost
    assert found.hosts.tolist() == topo.search(network, steps, 16, seed=3).hosts.tolist()


def test_cabling_files_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "cabling.json"
    path.write_text(
        json.dumps(
            {
                "hosts": ["x", "y"],
                "cables": [{"a": "x", "b": "S"}, {"a": "y", "b": "S", "count": 2, "gbit_s": 8}],
            }
        )
    )
    network = topo.read_cabling(path)
    assert [network.links[link].capacity for link in network.route(0, 1)] == [12.5e9, 2e9]
    for content, found in [
        ("{", "Expecting property name"),
        ("[]", "cabling.json"),
        ('{"hosts": ["x"]}', "'cables' is missing"),
        ('{"hosts": ["x"], "cables": []}', "host x has no cable"),
        ('{"hosts": ["x", "x"], "cables": [{"a": "x", "b": "S"}]}', "host x is listed twice"),
        ('{"hosts": ["x"], "cables": [{"a": "x", "b": "S", "count": 0}]}', "above 0"),
        ('{"hosts": ["x"], "cables": [{"a": "x", "b": "S", "count": 1e400}]}', "infinity"),
    ]:
        path.write_text(content)
        with pytest.raises(ValueError, match=found):
            topo.read_cabling(path)


@pytest.mark.parametrize("shape", [topo.bigraph, topo.fat_tree, topo.rails])
@pytest.mark.parametrize("numbers", [(10**30, 1, 1), (1, 10**30, 1), (10**5, 10**5, 1)])
def test_networks_beyond_any_cluster_are_refused_before_they_are_made(
    shape: Callable[..., topo.Network], numbers: tuple[int, int, int]
) -> None:
    with pytest.raises(ValueError, match="more than 1,048,576 hosts and cables"):
        shape(*numbers)


def test_more_ranks_than_hosts_and_odd_rank_maps_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ranks").write_bytes(b"\xff")
    for arguments, expected in (
        (["plan", "--ranks", str(10**9)], "there are 32 hosts"),
        (["simulate", "--ranks", str(1 << 40)], "more than 1,048,576 hosts and cables"),
        (["check", str(tmp_path / "ranks")], f"{tmp_path}/ranks: "),
    ):
        more = [] if arguments[0] == "simulate" else ["--bigraph", "4,4,1"]
        done = run("ffrecord", "topology", *arguments, *more)
        assert (done.returncode, expected in done.stderr) == (2, True), done.stderr


def test_the_command_plans_checks_simulates_and_draws(tmp_path: Path) -> None:
    planned = run("ffrecord", "topology", "plan", "--bigraph", "4,4,1", "--json")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert plan["placement"] == "hdrm" and plan["free_of_contention"]

    rank_map = tmp_path / "ranks"
    rank_map.write_text("\n".join(plan["hosts"]))
    assert run("ffrecord", "topology", "check", str(rank_map), "--bigraph", "4,4,1").returncode == 0
    rank_map.write_text("\n".join(sorted(plan["hosts"])))
    worse = run("ffrecord", "topology", "check", str(rank_map), "--bigraph", "4,4,1")
    assert worse.returncode == 3
    assert "contention: " in worse.stderr

    simulated = run(
        "ffrecord", "topology", "simulate", "--ranks", "8,32", "--storage-gbit", "40", "--json"
    )
    rows = {(r["ranks"], r["algorithm"], r["placement"]): r for r in json.loads(simulated.stdout)}
    for ranks in (8, 32):
        best = rows[ranks, "halving-doubling", "hdrm"]
        assert best["step_ms"] <= rows[ranks, "halving-doubling", "random"]["step_ms"]
        assert best["beside_ms"] >= best["step_ms"]

    picture = tmp_path / "net.svg"
    drawn = run("ffrecord", "topology", "draw", str(picture), "--bigraph", "2,2,1")
    assert drawn.returncode == 0, drawn.stderr
    circles = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}circle")
    assert len(list(circles)) == 8 + 4

    for wrong in (["--bigraph", "4,4"], ["--bigraph", "4,4,0"], [], ["--rails", "a,b,c"]):
        assert run("ffrecord", "topology", "plan", *wrong).returncode == 2
