"""Goal: scripts can run clusters: one JSON object, dry runs that change nothing, waits that end.

Method: all commands of the group are looked at; each is run on a fake cluster that counts changes.
Those of a real one are in test_cluster.py, test_cluster_restore.py and test_cluster_up.py.
"""

# ruff: noqa: D102 - of the fake, whose methods are those of the extension

import json
from pathlib import Path
from typing import Any

import click
import click.testing
import pytest

from ffrecord._cli import cluster as cli
from ffrecord._cli import cluster_backup, cluster_nodes
from ffrecord.errors import DeadlineExceeded

ADDRESS = "ffrecord://host1"
# What these print as JSON; part of the interface.
NODE_KEYS = {"node", "state_before", "state", "slot_count", "dry_run"}
MOVING = ("approve", "confirm", "drain", "rebalance", "rebuild", "remove", "repair", "restore")


class FakeCluster:
    """The extension's calls, as far as the commands need them; keeps what would be changed."""

    def __init__(self) -> None:
        self.changes: list[tuple[Any, ...]] = []

    def describe_cluster(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        states = {"n1": "in", "n2": "draining", "n3": "waiting"}
        nodes = [{"id": name, "state": state, "slot_count": 1365} for name, state in states.items()]
        return {"id": "c1", "nodes": nodes}

    def set_node_state(self, address: str, node: str, state: str, *, timeout_s: float) -> None:
        self.changes.append((node, state))

    def raise_feature_level(self, address: str, level: int, *, timeout_s: float) -> int:
        self.changes.append(("level", level))
        return 7

    def read_metadata(
        self, address: str, *, timeout_s: float
    ) -> tuple[int, list[tuple[str, int, bytes]]]:
        return 9, [("datasets/a", 1, b"x"), ("nodes/n1", 2, b"y")]

    def restore_metadata(
        self, address: str, number: int, keys: list[Any], *, timeout_s: float
    ) -> None:
        self.changes.append(("restore", len(keys)))

    def work_on_metadata(self, address: str, work: str, *, timeout_s: float) -> str:
        found = {"incarnation": "1f", "why": "restored", "witness": "n1", "silent": []}
        return json.dumps({**found, "changed": 0, "difference_count": 0, "differences": []})

    def confirm_metadata(self, address: str, incarnation: int, *, timeout_s: float) -> None:
        self.changes.append(("confirm", incarnation))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster()
    for module in (cli, cluster_nodes, cluster_backup):
        monkeypatch.setattr(module, "_ffrecord", made)
    return made


def told(*words: str | Path) -> dict[str, Any]:
    """What a command prints with --json: one object, alone in a line."""
    done = click.testing.CliRunner().invoke(cli.cluster, [*map(str, words), "--json"])
    assert done.exception is None, done.exception
    [line] = done.stdout.splitlines()
    facts: dict[str, Any] = json.loads(line)
    return facts


def options_of(command: click.Command) -> set[str]:
    return {name for option in command.params for name in option.opts}


def test_every_command_has_json_and_those_that_move_data_a_dry_run() -> None:
    for name, command in cli.cluster.commands.items():
        assert "--json" in options_of(command), name
        assert name == "local" or "--timeout" in options_of(command), name
    for name in (*MOVING, "undrain", "up"):
        assert "--dry-run" in options_of(cli.cluster.commands[name]), name


@pytest.mark.parametrize(
    ("words", "before", "state"),
    [
        (["approve", ADDRESS, "n3"], "waiting", "in"),
        (["drain", ADDRESS, "n1"], "in", "draining"),
        (["undrain", ADDRESS, "n2"], "draining", "in"),
        (["remove", ADDRESS, "n2", "--yes"], "draining", "out"),
    ],
)
def test_what_a_node_was_and_is_is_told(
    fake: FakeCluster, words: list[str], before: str, state: str
) -> None:
    dry = told(*words, "--dry-run")
    assert fake.changes == []
    assert dry["dry_run"] is True
    real = told(*words)
    assert fake.changes == [(words[2], state)]
    assert real.keys() - {"drained"} == NODE_KEYS
    assert {**real, "dry_run": True} == dry
    assert (real["node"], real["state_before"], real["state"]) == (words[2], before, state)


@pytest.mark.parametrize("command", ["drain", "undrain", "remove"])
def test_a_dry_run_names_a_node_that_there_is_not(fake: FakeCluster, command: str) -> None:
    done = click.testing.CliRunner().invoke(cli.cluster, [command, ADDRESS, "n9", "--dry-run"])
    assert isinstance(done.exception, FileNotFoundError)
    assert "no node n9; its nodes are n1, n2, n3" in str(done.exception)


def test_a_dry_run_of_a_removal_asks_nobody(fake: FakeCluster) -> None:
    assert told("remove", ADDRESS, "n1", "--dry-run")["state"] == "out"
    assert fake.changes == []


def test_a_wait_for_a_drain_ends_and_says_that_it_goes_on(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"nodes": [{"id": "n1", "slots": 5}], "moving": True, "from_cache": False}
    facts |= {"cluster": "c1", "leased": True}
    monkeypatch.setattr(cluster_nodes, "fetch_cluster", lambda *_: facts)
    monkeypatch.setattr(cluster_nodes, "_LOOK_S", 0.01)
    words = ["drain", ADDRESS, "n1", "--wait", "http://host1:9401", "--wait-limit", "0.05"]
    done = click.testing.CliRunner().invoke(cli.cluster, words)
    assert isinstance(done.exception, DeadlineExceeded)
    assert "n1 still drains" in str(done.exception)
    assert fake.changes == [("n1", "draining")]
    facts["nodes"] = [{"id": "n1", "slots": 0}, {"id": "n2", "slots": 5, "domain": "d"}]
    facts |= {"moving": False, "replicas": 1}
    assert told(*words)["drained"] is True
    done = click.testing.CliRunner().invoke(cli.cluster, ["drain", ADDRESS, "n1", *words[-2:]])
    assert done.exit_code == 2


def test_a_wait_for_a_drain_does_not_believe_a_node_of_another_cluster(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"nodes": [], "moving": False, "from_cache": False, "cluster": "c2", "leased": True}
    monkeypatch.setattr(cluster_nodes, "fetch_cluster", lambda *_: facts)
    words = ["drain", ADDRESS, "n1", "--wait", "http://host1:9401"]
    done = click.testing.CliRunner().invoke(cli.cluster, words)
    assert isinstance(done.exception, ValueError)
    assert "of cluster c1, and http://host1:9401 of cluster c2" in str(done.exception)


def test_the_metadata_is_saved_checked_and_put_back(fake: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    assert told("backup", ADDRESS, file) == {
        "file": str(file),
        "names": 1,
        "keys": 2,
        "revision": 9,
    }
    counts = {"names": 1, "keys": 2}
    assert told("restore", ADDRESS, file, "--dry-run") == {**counts, "dry_run": True}
    assert told("confirm", ADDRESS, "--dry-run")["confirmed"] is False
    assert fake.changes == []
    assert told("restore", ADDRESS, file, "--yes") == {**counts, "dry_run": False}
    confirmed = told("confirm", ADDRESS, "--yes")
    assert confirmed["confirmed"] is True and confirmed["difference_count"] == 0
    assert fake.changes == [("restore", 2), ("confirm", 0x1F)]
    assert told("upgrade", ADDRESS, "--yes") == {"level": 7}


def test_who_is_asked_about_lost_names_reads_them_first(fake: FakeCluster) -> None:
    done = click.testing.CliRunner().invoke(
        cli.cluster, ["confirm", ADDRESS, "--json"], input="y\n"
    )
    assert "differences  0" in done.stderr
    assert json.loads(done.stdout)["confirmed"] is True
