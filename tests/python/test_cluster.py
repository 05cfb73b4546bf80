"""Goal: a cluster of daemons serves as one, without any one of its nodes, and without etcd.

Method: real processes on loopback, which are killed, stopped and started again between calls and
under them; all that is read is compared with what was written.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
import ffrecord.checkpoint as ckpt
from browser import shown
from cli import ok, run
from cluster import cluster_in, kill, stopped
from conftest import ROOT
from eventually import eventually, until_idle
from ffrecord._cli.admin import fetch_cluster
from ffrecord._cli.local_cluster import LocalCluster
from ffrecord.errors import ConflictError, DeadlineExceeded, UnavailableError

COUNT = 1000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with cluster_in(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(autouse=True)
def whole(cluster: LocalCluster) -> Iterator[None]:
    """Each test finds and leaves every process there, and every extent where it should be."""
    yield
    for name in ["etcd", *(node.name for node in cluster.nodes)]:
        if not cluster.runs(name):
            cluster.start(name)
    cluster.wait_ready()
    wait_until_filled(cluster)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six, so that several slots have some."""
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(5)
    paths = [folder / f"{number}.ffr" for number in range(6)]
    for number, path in enumerate(paths):
        with ffrecord.Writer(path, {"label": "i64", "image": "bytes"}) as writer:
            for i in range(number, COUNT, len(paths)):
                image = random.bytes(int(random.integers(0, 4000)))
                writer.write({"label": i, "image": image})
    return paths


@pytest.fixture
def published(cluster: LocalCluster, files: list[Path]) -> str:
    address = f"{cluster.address}/data/x"
    ffrecord.publish(files, address, replace=True)
    return address


def wait_until_filled(cluster: LocalCluster) -> None:
    def facts() -> list[dict[str, Any]]:
        return [fetch_cluster(node.admin, 60.0) for node in cluster.nodes]

    eventually(lambda: not any(one["missing"] or one["moving"] for one in facts()), why=facts)


def wait_until_gone(address: str) -> None:
    """Each node shows a removal as soon as etcd has told it."""
    eventually(lambda: not ffrecord.list_published(address))
    with pytest.raises(FileNotFoundError):
        len(ffrecord.open(address))


def check_all(served: ffrecord.Reader, files: list[Path]) -> None:
    order = np.random.default_rng(1).permutation(COUNT)
    with ffrecord.open(files) as local:
        mine, theirs = local.read(order), served.read(order)
        np.testing.assert_array_equal(theirs.data, mine.data)
        np.testing.assert_array_equal(theirs.offsets, mine.offsets)


# --- Datasets ---


def test_every_node_knows_what_was_published(
    cluster: LocalCluster, published: str, files: list[Path]
) -> None:
    for node in cluster.nodes:
        address = f"ffrecord://{node.listen}/data/x"
        with ffrecord.open(address) as served:
            check_all(served, files)
        assert [one.name for one in ffrecord.list_published(address)] == ["data/x"]
    with pytest.raises(ConflictError, match="exists already"):
        ffrecord.publish(files, published)
    ffrecord.remove_published(published)
    wait_until_gone(published)


def test_an_extent_lies_on_as_many_nodes_as_there_are_replicas(
    cluster: LocalCluster, files: list[Path]
) -> None:
    def extents() -> list[str]:
        found = cluster.folder.glob("n*/extents/*/*")
        return [path.name for path in found if path.stat().st_size > 100_000]

    before = set(extents())
    ffrecord.publish(files, f"{cluster.address}/data/y")
    new = [name for name in extents() if name not in before]
    assert len(set(new)) == len(files)
    assert sorted(new) == sorted([*set(new), *set(new)])
    ffrecord.remove_published(f"{cluster.address}/data/y")


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_reads_go_on_without_a_node_and_so_do_publications(
    cluster: LocalCluster, published: str, files: list[Path], how: str
) -> None:
    served = ffrecord.open(published)
    check_all(served, files)
    for node in cluster.nodes:
        if how == "killed":
            kill(cluster, node.name)
            check_all(served, files)
            ffrecord.publish(files, f"{cluster.address}/data/z", replace=True)
            cluster.start(node.name)
        else:
            with stopped(cluster, node.name):
                check_all(served, files)
        cluster.wait_ready()
        wait_until_filled(cluster)
    with ffrecord.open(published) as again:
        check_all(again, files)


def test_a_node_that_is_killed_under_a_reader_costs_no_batch(
    cluster: LocalCluster, published: str, files: list[Path]
) -> None:
    served = ffrecord.open(published)
    killing = threading.Timer(0.3, kill, [cluster, cluster.nodes[1].name])
    killing.start()
    while killing.is_alive():
        check_all(served, files)
    for _ in range(5):
        check_all(served, files)


def test_reads_need_no_etcd_and_publications_wait_for_it(
    cluster: LocalCluster, published: str, files: list[Path]
) -> None:
    before = ffrecord.open(published)
    check_all(before, files)  # Opened at the first use.
    kill(cluster, "etcd")
    check_all(before, files)
    # Which dataset is the newest nobody can tell; the one that was known last is a choice.
    with pytest.raises(UnavailableError, match="cannot tell what is published now"):
        len(ffrecord.open(published, timeout_s=4))
    with ffrecord.open(f"{published}?old_names=accept") as served:
        check_all(served, files)
    with pytest.raises((UnavailableError, DeadlineExceeded)):
        ffrecord.publish(files, f"{cluster.address}/data/w", timeout_s=2)
    # Nodes say why before their client has left.
    with pytest.raises(UnavailableError, match=r"coordinator|lease") as refused:
        ffrecord.remove_published(published, timeout_s=4)
    assert "cannot be changed now" in str(refused.value)
    waiting = threading.Thread(
        target=ffrecord.publish, args=[files, f"{cluster.address}/data/w"], kwargs={"replace": True}
    )
    waiting.start()
    until_idle()  # It is under way; whether it is does not change what is checked.
    cluster.start("etcd")
    waiting.join()
    with ffrecord.open(f"{cluster.address}/data/w") as served:
        check_all(served, files)


def test_a_loader_reads_the_epoch_of_local_files(
    cluster: LocalCluster, published: str, files: list[Path]
) -> None:
    from ffrecord.torch import DataLoader, Dataset, Sampler

    def labels(where: str | list[Path]) -> list[int]:
        dataset = Dataset(where)
        loader = DataLoader(dataset, batch_sampler=Sampler(dataset, global_batch=50, seed=3))
        return [int(label) for batch in loader for label in batch["label"]]

    assert labels(published) == labels(files)


# --- Checkpoints ---


def state(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).random((300, 700)), "step": seed}


def test_checkpoints_survive_the_loss_of_any_one_node(cluster: LocalCluster) -> None:
    run_address = f"{cluster.address}/runs/a"
    for step, node in enumerate(cluster.nodes, start=1):
        ckpt.save(run_address, step, state(step))
        kill(cluster, node.name)
        loaded: Any = ckpt.load(run_address, state(0), step=step)
        np.testing.assert_array_equal(loaded["w"], state(step)["w"])
        ckpt.save(run_address, 10 + step, state(10 + step))  # Without it.
        loaded = ckpt.load(run_address, state(0), step=10 + step)
        np.testing.assert_array_equal(loaded["w"], state(10 + step)["w"])
        cluster.start(node.name)
        cluster.wait_ready()
        wait_until_filled(cluster)
    assert [commit.step for commit in ckpt.list(run_address)] == [1, 2, 3, 11, 12, 13]


def test_a_step_is_committed_once(cluster: LocalCluster) -> None:
    run_address = f"{cluster.address}/runs/b"
    ckpt.save(run_address, 1, state(1))
    with pytest.raises(ConflictError):
        ckpt.save(run_address, 1, state(2))
    loaded: Any = ckpt.load(run_address, state(0))
    np.testing.assert_array_equal(loaded["w"], state(1)["w"])


# --- Commands ---


def test_commands_show_the_cluster(cluster: LocalCluster) -> None:
    facts = json.loads(ok("ffrecord", "cluster", "nodes", cluster.address, "--json"))
    assert [node["id"] for node in facts["nodes"]] == [node.name for node in cluster.nodes]
    assert [node["address"] for node in facts["nodes"]] == [node.listen for node in cluster.nodes]
    assert all(node["slot_count"] > 0 and node["is_up"] for node in facts["nodes"])
    shown = ok("ffrecord", "cluster", "nodes", cluster.address)
    assert len(shown.splitlines()) == 1 + len(cluster.nodes)

    facts = json.loads(ok("ffrecord", "cluster", "status", cluster.nodes[0].admin, "--json"))
    assert facts["node"] == cluster.nodes[0].name
    shown = ok("ffrecord", "cluster", "status", cluster.nodes[0].admin)
    assert "held" in shown
    assert "; without a durability class: 2 replicas" in shown
    kill(cluster, cluster.nodes[2].name)
    status = ("ffrecord", "cluster", "status", cluster.nodes[0].admin)
    eventually(lambda: "1 down: n3" in ok(*status))


def test_plans_and_slots_are_shown(cluster: LocalCluster, published: str) -> None:
    admin = cluster.nodes[0].admin
    wait_until_filled(cluster)
    assert published
    facts = json.loads(ok("ffrecord", "cluster", "slots", admin, "--json"))
    assert len(facts["slots"]) == 4096
    extents = sum(slot["extents"] for slot in facts["slots"])
    assert f"{extents} extents, 0 lack replicas" in ok("ffrecord", "cluster", "slots", admin)
    assert ok("ffrecord", "cluster", "lost", admin) == "none\n"

    plan = ("ffrecord", "cluster", "rebalance", "--plan", admin)
    assert "0 extents, 0 B, would be copied" in ok(*plan)
    names = {node.name for node in cluster.nodes}
    moves = {
        name: json.loads(ok(*plan, "--without", name, "--json"))["moves"] for name in sorted(names)
    }
    for name, planned in moves.items():
        assert all(move["to"] in names - {name} for move in planned)
    left = max(moves, key=lambda name: len(moves[name]))  # The few extents may be on two of three.
    assert moves[left]
    assert moves[left][0]["to"] in ok(*plan, "--without", left)
    assert run("ffrecord", "cluster", "rebalance", admin, "--without", left).returncode == 2


def test_repair_and_rebalance_wait_until_nothing_is_left(
    cluster: LocalCluster, published: str
) -> None:
    wait_until_filled(cluster)
    admins = [node.admin for node in cluster.nodes]
    assert ok("ffrecord", "cluster", "repair", *admins) == "every extent has its replicas\n"
    assert ok("ffrecord", "cluster", "rebalance", *admins) == "each node has its share\n"
    kill(cluster, "n3")
    eventually(lambda: not all(one["is_up"] for one in fetch_cluster(admins[0], 60.0)["nodes"]))

    # The others take over after two seconds.
    told = ok("ffrecord", "cluster", "repair", *admins[:2], "--wait", "60")

    assert told.endswith("every extent has its replicas\n")
    cluster.start("n3")
    cluster.wait_ready()
    told = ok("ffrecord", "cluster", "rebalance", *admins, "--wait", "60")
    assert told.endswith("each node has its share\n")
    assert published


def test_the_page_shows_the_nodes_and_one_that_is_down(
    cluster: LocalCluster, published: str, tmp_path: Path
) -> None:
    wait_until_filled(cluster)
    facts = fetch_cluster(cluster.nodes[0].admin, 5.0)
    # What it shows of a cluster, nodes give.
    page = (ROOT / "server" / "monitoring" / "dashboard.html").read_text()
    assert set(re.findall(r"\bfacts\.(\w+)", page)) <= facts.keys()
    assert set(re.findall(r"\bnode\.(\w+)", page)) <= facts["nodes"][0].keys()
    assert published

    page = shown(f"http://{cluster.nodes[0].admin}/", tmp_path)
    assert '<section id="cluster" class="wide">' in page
    assert "all nodes are up, nothing moves" in page
    assert re.search(r"<td>n1 \(this one\)</td><td>127.0.0.1:\d+</td><td>n1</td><td>100</td>", page)
    assert page.count("<td>held</td><td>in</td>") == 3
    kill(cluster, "n3")
    address = f"http://{cluster.nodes[0].admin}/"
    eventually(lambda: '<td class="bad">in, down</td>' in shown(address, tmp_path))


def test_only_a_node_that_waits_is_approved(cluster: LocalCluster) -> None:
    done = run("ffrecord", "cluster", "approve", cluster.address, "n1")
    assert done.returncode == 4
    assert "n1 does not wait for approval; waiting: none" in done.stderr


def test_a_node_that_holds_data_and_is_up_is_not_removed(
    cluster: LocalCluster, published: str, files: list[Path]
) -> None:
    done = run("ffrecord", "cluster", "remove", cluster.address, "n3", "--yes")
    assert done.returncode == 4
    assert "n3 is up and holds" in done.stderr
    with ffrecord.open(published) as served:
        check_all(served, files)


def test_a_rolling_restart_under_load_fails_no_batch(
    cluster: LocalCluster, published: str, files: list[Path]
) -> None:
    served = ffrecord.open(published)
    random = np.random.default_rng(3)
    is_over, batches = threading.Event(), 0
    failures: list[BaseException] = []

    def read() -> None:
        nonlocal batches
        with ffrecord.open(files) as local:
            while not is_over.is_set() and not failures:
                order = random.integers(0, COUNT, 64)
                try:
                    theirs = served.read(order)
                    np.testing.assert_array_equal(theirs.data, local.read(order).data)
                except BaseException as error:  # For the test to raise.
                    failures.append(error)
                batches += 1

    reader = threading.Thread(target=read)
    reader.start()
    for node in cluster.nodes:
        before = batches
        cluster.stop(node.name)
        eventually(lambda least=before + 20: batches >= least or failures)
        cluster.start(node.name)
        cluster.wait_ready()
    is_over.set()
    reader.join()
    assert not failures, failures[0]

    raised = ok("ffrecord", "cluster", "upgrade", cluster.address, "--yes")
    assert re.fullmatch(r"feature level \d+\n", raised)
    raised = ok("ffrecord", "cluster", "upgrade", cluster.address, "--yes", "--json")
    assert json.loads(raised)["level"] > 0
    kill(cluster, cluster.nodes[0].name)
    upgrade = ("ffrecord", "cluster", "upgrade", cluster.address, "--yes")
    eventually(lambda: run(*upgrade).returncode != 0)  # Its lease has to end.


def test_a_node_is_drained_stopped_and_taken_back(
    cluster: LocalCluster, published: str, files: list[Path]
) -> None:
    node = cluster.nodes[1]
    drain = ("ffrecord", "cluster", "drain", cluster.address, node.name)
    dry = json.loads(ok(*drain, "--dry-run", "--json"))
    assert dry["state_before"] == "in" and dry["slot_count"] > 0
    known = json.loads(ok("ffrecord", "cluster", "nodes", cluster.address, "--json"))["nodes"]
    assert {one["state"] for one in known} == {"in"}
    wait = ["--wait", cluster.nodes[0].admin, "--wait-limit", "120"]
    told = json.loads(ok(*drain, *wait, "--json"))
    assert told == {**dry, "state": "draining", "dry_run": False, "drained": True}
    shown = ok("ffrecord", "cluster", "status", cluster.nodes[0].admin)
    assert f"drained      {node.name}: it may be stopped" in shown
    cluster.stop(node.name)
    with ffrecord.open(published) as served:
        check_all(served, files)
    cluster.start(node.name)
    ok("ffrecord", "cluster", "undrain", cluster.address, node.name)


def test_a_command_at_a_daemon_of_its_own_says_so(tmp_path: Path) -> None:
    from daemon import Daemon

    with Daemon(tmp_path / "alone") as daemon:
        done = run("ffrecord", "cluster", "nodes", daemon.address())
    assert done.returncode == 2
    assert "is of no cluster" in done.stderr


def test_a_daemon_of_no_cluster_at_the_address_of_a_node_is_given_no_name(
    cluster: LocalCluster, files: list[Path], tmp_path: Path
) -> None:
    from daemon import Daemon

    taken = cluster.nodes[1]
    for node in cluster.nodes[1:]:
        cluster.stop(node.name)
    stranger = Daemon(tmp_path / "alone")
    stranger.listen = taken.listen
    with stranger:
        with pytest.raises(UnavailableError):
            address = f"ffrecord://{cluster.nodes[0].listen}/data/stranger"
            ffrecord.publish(files, address, timeout_s=4)
        assert ffrecord.list_published(stranger.address()) == []


def why_not_listed(address: str) -> str:
    """Return why the names at an address cannot be told within a moment; empty: they can."""
    try:
        ffrecord.list_published(address, timeout_s=0.5)
    except (UnavailableError, DeadlineExceeded) as error:
        return str(error)
    return ""


def test_a_stranger_that_is_quicker_than_slow_nodes_is_not_the_cluster(
    cluster: LocalCluster, published: str, files: list[Path], tmp_path: Path
) -> None:
    from daemon import Daemon

    with Daemon(tmp_path / "alone") as stranger:
        ffrecord.publish(files[:1], stranger.address("data/x"))
        first, _, third = (node.listen for node in cluster.nodes)
        address = f"ffrecord://{first},{stranger.listen},{third}/data/x"
        with stopped(cluster, "n1"), stopped(cluster, "n3"):
            # The look-up ends without the nodes: only the stranger has answered it.
            reader = ffrecord.open(address, timeout_s=300)
            eventually(lambda: "is a daemon of no cluster" in why_not_listed(address))
        assert len(reader) == COUNT
    assert published


def test_a_node_that_there_is_not_cannot_be_drained(cluster: LocalCluster) -> None:
    done = run("ffrecord", "cluster", "drain", cluster.address, "nobody")
    assert done.returncode == 4
    assert "nobody" in done.stderr


def test_more_replicas_than_nodes_are_refused(tmp_path: Path) -> None:
    done = run("ffrecord", "cluster", "local", tmp_path, "-n", "2", "--replicas", "3")
    assert done.returncode == 2
    assert "raise --nodes or lower --replicas" in done.stderr


def test_a_cluster_on_this_machine_tells_a_program_where_it_is(tmp_path: Path) -> None:
    if shutil.which("etcd") is None:
        pytest.skip("no etcd here: the package etcd-server is not installed")
    words = ["cluster", "local", str(tmp_path), "-n", "1", "--replicas", "1", "--json"]
    command = [sys.executable, "-m", "ffrecord._cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            facts = json.loads(process.stdout.readline())
            [node] = facts["nodes"]
            assert facts["address"] == f"ffrecord://{node['address']}/"
            assert fetch_cluster(node["admin"], 5.0)["node"] == node["id"]
            assert Path(f"/proc/{node['process']}/exe").resolve().name == "ffrecordd"
        finally:
            process.terminate()
    assert process.returncode == 0


def processes_in(folder: Path) -> list[int]:
    """Those whose command names the folder."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in command.read_bytes():
                found.append(int(command.parent.name))
    return found


@pytest.mark.parametrize("log", ["etcd.log", "n2.log"])
def test_a_cluster_that_is_stopped_as_it_starts_leaves_no_process(tmp_path: Path, log: str) -> None:
    if shutil.which("etcd") is None:
        pytest.skip("no etcd here: the package etcd-server is not installed")
    words = ["cluster", "local", str(tmp_path), "-n", "2"]
    process = subprocess.Popen([sys.executable, "-m", "ffrecord._cli.main", *words])
    try:
        eventually((tmp_path / log).exists, process)
        process.terminate()
        assert process.wait(300) == 0
        assert processes_in(tmp_path) == []
    finally:
        for left in processes_in(tmp_path):
            os.kill(left, signal.SIGKILL)


# --- All of it, stopped and started ---


def test_a_cluster_comes_back_from_its_folder(tmp_path: Path, files: list[Path]) -> None:
    with cluster_in(tmp_path, node_count=2) as running:
        address = f"{running.address}/data/x"
        ffrecord.publish(files, address)
    with cluster_in(tmp_path, node_count=2), ffrecord.open(address) as served:
        check_all(served, files)
    with pytest.raises(ValueError, match="has a cluster of 2 nodes"):
        LocalCluster(tmp_path, 3, 2)
