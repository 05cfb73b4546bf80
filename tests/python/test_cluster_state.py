"""Goal: `status`, `repair` and `rebalance` tell apart what an operator acts on.

Method: the facts of a node as its admin port gives them, changed in one respect at a time.
"""

import json
from typing import Any

import click.testing
import pytest

from ffrecord._cli import cluster as cli
from ffrecord._cli import cluster_moves, cluster_nodes
from ffrecord._cli.admin import check_one_cluster
from ffrecord._cli.cluster import assess
from ffrecord.errors import CorruptionError, DeadlineExceeded


def facts(**changes: object) -> dict[str, Any]:
    """Of a cluster of three nodes where all is well."""
    nodes = [{"id": f"n{i}", "state": "in", "is_up": True, "slots": 2731} for i in (1, 2, 3)]
    well: dict[str, Any] = {
        **{"node": "n1", "leased": True, "trouble": "", "moving": False, "nodes": nodes},
        **{"missing": 0, "missing_bytes": 0, "unheld": 0, "lacking": 0, "alone": 0},
        **{"refused": 0, "incomplete": 0, "from_cache": False, "refusals": []},
    }
    return well | changes


def with_third(**changes: object) -> list[dict[str, Any]]:
    """The nodes, the third of them different."""
    first, second, third = facts()["nodes"]
    return [first, second, third | changes]


def test_all_is_well() -> None:
    state, lines = assess(facts())
    assert state == "well"
    assert len(lines) == 1


def test_a_node_that_is_down_is_not_yet_a_repair() -> None:
    state, [line] = assess(facts(nodes=with_third(is_up=False), lacking=7, alone=2))
    assert state == "degraded"
    assert "n3 down: no data moves yet, 7 extents" in line
    assert "2 of them none" in line


def test_too_few_nodes_for_all_replicas_are_not_well() -> None:
    trouble = "1 failure domains are up and 2 replicas are wanted; start or add nodes"
    state, [line] = assess(facts(lacking=12, trouble=trouble))
    assert state == "degraded"
    assert "12 extents have a replica less: 1 failure domains are up" in line


def test_once_others_take_over_what_is_left_is_told() -> None:
    down = with_third(is_up=False, slots=0)
    state, lines = assess(facts(nodes=down, moving=True, missing=5, missing_bytes=3 << 20))
    assert state == "repairing"
    assert "5 extents, 3.0 MiB, are left to copy to n1" in lines[0]
    assert "others take over" in lines[1]


def test_a_node_that_is_filled_says_that_others_still_copy() -> None:
    state, [line] = assess(facts(moving=True))
    assert state == "repairing"
    assert "n1 has all of its own" in line


def test_what_no_node_has_is_damaged_and_not_left_to_copy() -> None:
    state, [line] = assess(facts(missing=4, missing_bytes=9, unheld=4))
    assert state == "damaged"
    assert "4 extents" in line
    state, lines = assess(facts(missing=6, missing_bytes=9, unheld=4))
    assert state == "damaged"
    assert "2 extents" in lines[1]


def test_names_whose_files_are_not_known_are_not_well() -> None:
    state, [line] = assess(facts(incomplete=2))
    assert state == "repairing"
    assert "the files of 2 names are not known to n1" in line


@pytest.mark.parametrize("changes", [{"moving": True}, {"missing": 5, "missing_bytes": 9}])
def test_that_lists_of_files_are_missing_is_told_beside_what_is_copied(
    changes: dict[str, object],
) -> None:
    _, lines = assess(facts(incomplete=2, **changes))
    assert "the files of 2 names are not known to n1" in lines[0]
    assert "cop" in lines[1]


def test_a_node_that_takes_no_part_says_why() -> None:
    state, lines = assess(facts(leased=False, trouble="it waits for approval"))
    assert state == "cut off"
    assert "it waits for approval" in lines[0]


def test_a_node_whose_certificate_is_refused_is_not_well() -> None:
    state, [line] = assess(facts(refusals=[{"node": "n3", "why": "not signed"}]))
    assert state == "degraded"
    assert "n1 and n3 refuse each other" in line


@pytest.mark.parametrize("cut_off", [{"leased": False}, {"from_cache": True}, {"moving": True}])
def test_only_a_node_that_knows_the_newest_slot_map_says_that_another_is_drained(
    cut_off: dict[str, object],
) -> None:
    known = [
        {"id": f"n{i}", "domain": f"d{i}", "slots": slots}
        for i, slots in ((1, 4096), (2, 4096), (3, 0))
    ]
    well = facts(nodes=known, replicas=2)
    assert cluster_nodes.is_drained(well, "n3")
    assert not cluster_nodes.is_drained(well | cut_off, "n3")


def test_admin_ports_of_two_clusters_are_named() -> None:
    check_one_cluster([("a:1", "c1"), ("b:1", "00000000"), ("d:1", "c1")])
    with pytest.raises(ValueError, match=r"a:1 is of cluster c1, and d:1 of cluster c2"):
        check_one_cluster([("a:1", "c1"), ("b:1", "00000000"), ("d:1", "c2")])


@pytest.mark.parametrize("state", ["waiting", "out"])
def test_a_node_that_does_not_count_is_not_down(state: str) -> None:
    assert assess(facts(nodes=with_third(state=state, is_up=False, slots=0)))[0] == "well"


# --- What else status says ---


def with_drain(**changes: object) -> dict[str, Any]:
    """n3 drains, and the new map has no slots on it."""
    nodes = [
        node | {"domain": f"rack{i}"}
        for i, node in enumerate(with_third(state="draining", slots=0), start=1)
    ]
    return facts(nodes=nodes, replicas=2) | changes


def test_a_node_is_drained_once_the_others_have_all() -> None:
    assert cli._describe_drains(facts()) == []
    assert cli._describe_drains(with_drain()) == ["drained      n3: it may be stopped"]


@pytest.mark.parametrize("changes", [{"moving": True}, {"from_cache": True}, {"leased": False}])
def test_a_node_drains_while_others_copy_or_nobody_can_know(changes: dict[str, object]) -> None:
    [line] = cli._describe_drains(with_drain(**changes))
    assert line == "draining     n3: others copy what it holds; do not stop it yet"


def test_a_node_is_not_drained_where_too_few_others_are_left() -> None:
    [line] = cli._describe_drains(with_drain(replicas=3))
    assert line.startswith("draining     n3 is not drained, and must not be stopped: 2 failure")


def test_a_drained_node_that_was_stopped_is_not_told_of() -> None:
    stopped = with_drain()
    stopped["nodes"][2]["is_up"] = False
    assert cli._describe_drains(stopped) == []


@pytest.mark.parametrize(
    ("state", "shown"), [("waiting", "waiting"), ("in", "in, down"), ("out", "out, down")]
)
def test_whether_a_node_that_waits_runs_is_not_told(
    monkeypatch: pytest.MonkeyPatch, state: str, shown: str
) -> None:
    node = {"id": "n3", "address": "", "domain": "rack3", "weight": 100, "slot_count": 0}
    told = {"nodes": [node | {"state": state, "is_up": False, "daemon": ""}]}
    monkeypatch.setattr(cli._ffrecord, "describe_cluster", lambda *_, **__: told)
    done = click.testing.CliRunner().invoke(cli.cluster, ["nodes", "ffrecord://host1"])
    assert done.output.splitlines()[1].endswith(f"  {shown}")


def test_of_a_node_that_waits_an_operator_sees_which_daemon_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {"address": "10.0.0.3:9400", "daemon": "ab" * 16}
    line = f"n3 at 10.0.0.3:9400 since 2026-11-27 05:00 UTC, daemon {'ab' * 16}"
    since = 1795755600_000
    waiting = with_third(
        state="waiting", is_up=False, slots=0, waiting=said | {"since_unix_ms": since}
    )
    [told] = cli._list_waiting(facts(nodes=waiting))
    assert told == f"waiting      {line}: ffrecord cluster approve ADDRESS n3"
    node = {"id": "n3", "domain": "rack3", "weight": 1, "slot_count": 0, "is_up": False} | said
    nodes = [node | {"state": "waiting", "waiting_since_unix_ms": since}]
    monkeypatch.setattr(cli._ffrecord, "describe_cluster", lambda *_, **__: {"nodes": nodes})
    done = click.testing.CliRunner().invoke(cli.cluster, ["nodes", "ffrecord://host1"])
    assert done.output.splitlines()[2] == f"waiting: {line}"


def test_of_a_node_of_an_earlier_version_that_waits_its_name_is_all() -> None:
    waiting = with_third(state="waiting", is_up=False, slots=0)
    [told] = cli._list_waiting(facts(nodes=waiting))
    assert told == "waiting      n3: ffrecord cluster approve ADDRESS n3"


# --- What repair and rebalance wait for ---


def test_nothing_is_left_where_all_is_well() -> None:
    assert cluster_moves.unrepaired(facts()) == []
    assert cluster_moves.unbalanced(facts()) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"missing": 5, "missing_bytes": 3 << 20}, "5 extents, 3.0 MiB, are left to copy to n1"),
        ({"missing": 4, "unheld": 4}, "4 extents of n1 are on no node that answers"),
        ({"refused": 2}, "n1 has no room for 2 extents"),
        ({"moving": True}, "nodes copy what the new slot map gives them"),
        ({"incomplete": 3}, "n1 does not know the files of 3 names yet"),
        ({"from_cache": True}, "n1 has not seen the metadata since its start"),
        ({"leased": False, "trouble": "why"}, "n1 takes no part: why"),
    ],
)
def test_what_is_not_copied_holds_up_both(changes: dict[str, object], line: str) -> None:
    assert cluster_moves.unrepaired(facts(**changes)) == [line]
    assert cluster_moves.unbalanced(facts(**changes)) == [line]


def test_a_node_without_room_says_how_much_it_leaves_free() -> None:
    full = facts(refused=2, room_bytes=3 << 20, kept_bytes=256 << 20)
    wanted = (
        "n1 has no room for 2 extents: repair may take 3.0 MiB more of its disks, and leaves"
        " 256 MiB free"
    )
    assert cluster_moves.unrepaired(full) == [wanted]


def test_a_plan_says_where_extents_come_from_and_who_has_no_room(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moves = [
        {"from": "n2", "members": 0, "to": "n1", "extents": 1, "bytes": 5 << 20},
        {"from": "", "members": 4, "to": "n1", "extents": 2, "bytes": 6 << 20},
        {"from": "", "members": 0, "to": "n3", "extents": 3, "bytes": 7 << 20},
        {"from": "", "to": "n3", "extents": 3, "bytes": 7 << 20},  # Of an earlier version.
    ]
    plan = {"moves": moves, "slot_places": 9, "too_few_domains": False}
    kept = {"kept_bytes": 1 << 20}
    nodes = [
        facts(room_bytes=10 << 20, **kept),
        facts(node="n2", room_bytes=0, **kept),
        facts(node="n3"),
    ]
    cluster_moves.show_plan(plan, nodes, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("n2 ")
    assert lines[2].startswith("computed from 4 members  n1 ")
    assert lines[3].startswith("no node that is up ")
    assert lines[4].startswith("no node that is up ")
    assert lines[-1].startswith("n1 has no room for 11 MiB: repair may take 10 MiB more")
    cluster_moves.show_plan(plan, nodes, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["short_of_room"]) == 1
    nodes[0]["room_bytes"] = 11 << 20
    assert cluster_moves.short_of_room(moves, nodes) == []


def test_a_node_that_is_down_holds_up_a_repair_until_others_have_its_share() -> None:
    down = facts(nodes=with_third(is_up=False), lacking=7, alone=1)
    lines = cluster_moves.unrepaired(down)
    assert "ffrecord cluster remove ADDRESS n3" in lines[0]
    assert lines[1] == "7 extents have a replica less, 1 of them none"
    assert cluster_moves.unbalanced(down) == []
    assert cluster_moves.unrepaired(facts(nodes=with_third(is_up=False, slots=0))) == []


def test_nodes_that_join_or_drain_hold_up_a_rebalance() -> None:
    draining = facts(nodes=with_third(state="draining"))
    assert cluster_moves.unbalanced(draining) == ["n3 drains: 2731 slots are left"]
    joining = facts(nodes=with_third(slots=0))
    assert cluster_moves.unbalanced(joining) == ["n3 has no slots yet"]
    assert cluster_moves.unrepaired(draining) == cluster_moves.unrepaired(joining) == []
    drained = facts(nodes=with_third(state="draining", slots=0))
    assert cluster_moves.unbalanced(drained) == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"moving": True}, DeadlineExceeded), ({"missing": 1, "unheld": 1}, CorruptionError)],
)
def test_waiting_ends_with_the_time_and_tells_losses_apart(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], error: type[Exception]
) -> None:
    monkeypatch.setattr(cluster_moves, "fetch_cluster", lambda *_: facts(**changes))
    runner = click.testing.CliRunner()

    waited = runner.invoke(cluster_moves.repair, ["a", "--wait", "0.1"])
    looked = runner.invoke(cluster_moves.repair, ["a"])

    assert isinstance(waited.exception, error)
    assert looked.exit_code == 0
    assert waited.output == looked.output


# --- What operators may do ---


def test_undrain_lets_in_nobody_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {"nodes": [{"id": "n3", "state": "waiting"}]}
    changed: list[object] = []
    monkeypatch.setattr(cli._ffrecord, "describe_cluster", lambda *_, **__: nodes)
    monkeypatch.setattr(cli._ffrecord, "set_node_state", lambda *each, **_: changed.append(each))

    done = click.testing.CliRunner().invoke(cluster_nodes.undrain, ["ffrecord://a", "n3"])

    assert "waits for approval" in str(done.exception)
    assert changed == []


def test_drain_waits_at_an_admin_port_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def fetch(*arguments: object) -> dict[str, Any]:
        asked.append(arguments)
        domains = [node | {"domain": node["id"]} for node in with_third(slots=0)]
        return facts(nodes=domains, replicas=2, cluster="c1")

    monkeypatch.setattr(cluster_nodes, "fetch_cluster", fetch)
    nodes = {"id": "c1", "nodes": [{"id": "n3", "state": "in", "slot_count": 0}]}
    monkeypatch.setattr(cli._ffrecord, "describe_cluster", lambda *_, **__: nodes)
    monkeypatch.setattr(cli._ffrecord, "set_node_state", lambda *_, **__: None)
    flags = ["--wait", "http://a:1", "--token-file", "token"]

    done = click.testing.CliRunner().invoke(cluster_nodes.drain, ["ffrecord://a", "n3", *flags])

    assert done.exit_code == 0, done.output
    assert asked == [("http://a:1", 30.0, "token")]
