"""Goal: `cluster up` makes a cluster of hosts; it changes nothing if one of them is not fit.

Run again it does nothing, and `down` loses nothing.

Method: hosts are folders of this machine, with a systemctl that starts real daemons and a real
etcd. Faults are made on a host before the run; what hosts keep is compared before and after. One
test goes over a real sshd on loopback.
"""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ffrecord
from cli import ok, run
from ffrecord import _ffrecord
from ffrecord._cli.bring_up import BringUp
from ffrecord._cli.hosts_file import read_hosts_file
from ffrecord.errors import UnavailableError
from machines import LocalHost, Machines, sshd

NAMES = ["h1", "h2", "h3"]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if shutil.which("etcd") is None:
        pytest.skip("no etcd here: the package etcd-server is not installed")
    made = Machines(tmp_path / "machines")
    yield made
    made.stop_all()


def bring_up(machines: Machines, file: Path) -> tuple[BringUp, list[str]]:
    """What the command has, and the lines that it prints."""
    cluster = read_hosts_file(file)
    said: list[str] = []
    hosts = {entry.name: LocalHost(entry.name, machines) for entry in cluster.hosts}
    return BringUp(cluster, hosts, said.append, timeout_s=90.0), said


def up(machines: Machines, file: Path) -> list[str]:
    """Run it; the lines that it prints."""
    running, said = bring_up(machines, file)
    running.apply(running.plan(running.check()))
    return said


def states(address: str) -> dict[str, tuple[str, bool]]:
    facts = _ffrecord.describe_cluster(address)
    return {node["id"]: (node["state"], node["is_up"]) for node in facts["nodes"]}


def test_a_cluster_comes_up_grows_changes_and_comes_back_with_its_data(
    machines: Machines, tmp_path: Path
) -> None:
    records = tmp_path / "x.ffr"
    with ffrecord.Writer(records, {"x": "i64"}) as writer:
        for number in range(100):
            writer.write({"x": number})

    # The first run.
    file = machines.hosts_file(NAMES[:2])
    running, _ = bring_up(machines, file)
    said = up(machines, file)
    assert "h2: approved" in said
    # Settings may have a password.
    modes = {path.suffix: path.stat().st_mode & 0o777 for path in machines.folder.rglob("*-h1.*")}
    modes |= {path.suffix: path.stat().st_mode & 0o777 for path in machines.folder.rglob("h1.toml")}
    assert (modes[".toml"], modes[".service"]) == (0o600, 0o644)
    assert states(running.address) == {"h1": ("in", True), "h2": ("in", True)}
    name = f"{running.address}x"
    ffrecord.publish([records], name)

    # The second one changes nothing.
    before = machines.tree()
    machines.calls()
    assert up(machines, file) == []
    assert running.plan(running.check()) == []
    assert machines.calls() == []
    assert machines.tree().keys() == before.keys()

    # Another host joins; those that are there go on untouched.
    file = machines.hosts_file(NAMES)
    said = up(machines, file)
    assert all(line.startswith("h3: ") for line in said), said
    assert states(running.address)["h3"] == ("in", True)

    # Another setting restarts each node, one after the other, and not etcd.
    machines.calls()
    up(machines, machines.hosts_file(NAMES, more="repair_mib_s = 64"))
    restarts = [line for line in machines.calls() if line.startswith("restart")]
    assert restarts == [f"restart ffrecord-t-{one}.service" for one in NAMES]

    # A node that cannot be stopped is named; the others are, and etcd is not.
    file = machines.hosts_file(NAMES, more="repair_mib_s = 64")
    running, said = bring_up(machines, file)
    machines.refuse("disable --quiet --now ffrecord-t-h2.service")
    with pytest.raises(UnavailableError, match=r"h2: stop ffrecord-t-h2.service: refused;"):
        running.down()
    assert said == ["h1: stopped ffrecord-t-h1.service", "h3: stopped ffrecord-t-h3.service"]
    assert states(running.address)["h2"][1]
    machines.refuse("")

    # Down, twice, and back.
    before = machines.tree()
    running.down()
    assert said[-1] == "h1: stopped ffrecord-t-h1-etcd.service"
    assert not list(machines.running.glob("*.enabled"))
    running.down()
    assert said[-1] == "h1: ffrecord-t-h1-etcd.service does not run"
    with pytest.raises(UnavailableError):
        _ffrecord.describe_cluster(running.address, timeout_s=1.0)
    assert set(before) <= set(machines.tree()) | {one for one in before if "/disks/" in one}
    up(machines, file)
    with ffrecord.open(name) as served:
        np.testing.assert_array_equal(served.read(range(100))["x"], np.arange(100))


def faulty(machines: Machines, fault: str) -> None:
    """Make a host unfit."""
    disk = machines.folder / "disks" / "h2"
    if fault == "data of others":
        disk.mkdir()
        (disk / "identity").write_text("x")
    elif fault == "no disk":
        (machines.folder / "disks").rename(machines.folder / "unmounted")
    elif fault == "a file":
        disk.write_text("x")
    elif fault == "no daemon":
        path = machines.hosts_file(NAMES)
        path.write_text('daemon = "ffrecordd-gone"\n' + path.read_text())
    elif fault == "version":
        machines.add_program("ffrecordd", "echo ffrecordd 9.9.9")
    elif fault == "clock":
        machines.add_program("date", "echo 1000000000.5")
    elif fault == "no systemd":
        machines.add_program("systemctl", "echo offline; exit 1")
    elif fault == "no user":
        path = machines.hosts_file(NAMES)
        text = path.read_text().splitlines()
        text[1] = 'user = "nobody-of-that-name"'
        path.write_text("\n".join(text))
    elif fault == "settings":
        machines.hosts_file(NAMES, more="replica = 2")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("data of others", r"h2: folder: .*/h2 has data, and nothing here says that it is h2's"),
        ("no disk", r"h1: folder: .*/h1 does not exist, nor the folder that it is in; mount"),
        ("a file", r"h2: folder: .*/h2 is not a folder"),
        ("no daemon", r"h1: ffrecordd: ffrecordd-gone is not in PATH; install"),
        ("version", r"h1: ffrecordd: .* is ffrecordd 9.9.9, and this command is of version"),
        ("clock", r"h3: clock: \d+ s from the clock here; run a time service"),
        ("no systemd", r"h1: systemd: it does not run, as in a container; `up` needs a host that"),
        ("no user", r"h1: user: there is no user nobody-of-that-name; add it: useradd"),
        ("settings", r"h1: settings: .*replica"),
    ],
)
def test_a_host_that_is_not_fit_is_named_and_nothing_is_changed(
    machines: Machines, fault: str, message: str
) -> None:
    file = machines.hosts_file(NAMES)
    faulty(machines, fault)
    before = machines.tree()
    running, said = bring_up(machines, file)

    with pytest.raises(UnavailableError, match=message):
        running.check()

    assert said == []
    assert machines.tree() == before
    assert machines.calls() == []


def test_a_port_in_use_is_named(machines: Machines) -> None:
    file = machines.hosts_file(NAMES)
    running, _ = bring_up(machines, file)
    for of, host in (("h3 admin", "h3"), ("etcd peer", "h1")):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", machines.port(of)))
            taken.listen()
            message = f"{host}: port: {machines.port(of)} is in use by another program; stop"
            with pytest.raises(UnavailableError, match=message):
                running.check()


def test_members_of_etcd_are_not_changed_under_their_data(machines: Machines) -> None:
    file = machines.hosts_file(NAMES)
    running, _ = bring_up(machines, file)
    (etcd, *_) = running.plan(running.check())
    for path, text in etcd[1].files.items():
        Path(path).write_text(text.replace("--name h1", "--name other"))

    with pytest.raises(UnavailableError, match=r"h1: etcd: .* would change"):
        running.check()


def test_a_daemon_that_does_not_start_is_named_and_the_next_run_goes_on(
    machines: Machines,
) -> None:
    file = machines.hosts_file(NAMES[:2])
    program = (machines.bin / "ffrecordd").read_text().removeprefix("#!/bin/sh\n")
    # It passes the check, and ends when it is to serve the second node.
    machines.add_program(
        "ffrecordd",
        f'case "$*" in *h2.toml) [ -e {machines.folder}/mended ] || exit 4;; esac\n{program}',
    )
    running, _ = bring_up(machines, file)
    with pytest.raises(UnavailableError, match=r"h2: start ffrecord-t-h2.service: .*run the com"):
        running.apply(running.plan(running.check()))

    (machines.folder / "mended").touch()
    said = up(machines, file)

    assert said == ["h2: started ffrecord-t-h2.service", "h2: approved"]


def test_settings_that_an_interrupted_run_has_written_come_into_force_with_the_next_one(
    machines: Machines,
) -> None:
    up(machines, machines.hosts_file(NAMES[:2]))
    file = machines.hosts_file(NAMES[:2], more="repair_mib_s = 64")
    machines.refuse("restart ffrecord-t-h1.service")
    with pytest.raises(UnavailableError, match=r"h1: restart ffrecord-t-h1.service: refused;"):
        up(machines, file)
    machines.refuse("")
    machines.calls()

    said = up(machines, file)

    assert said[0] == "h1: restarted ffrecord-t-h1.service", said
    restarts = [line for line in machines.calls() if line.startswith("restart")]
    assert restarts == [f"restart ffrecord-t-{one}.service" for one in NAMES[:2]]
    assert up(machines, file) == []
    assert not list(machines.folder.rglob("*.restart"))


def test_a_host_is_let_in_once_although_nodes_do_not_answer_or_still_see_it_wait(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = machines.hosts_file(NAMES[:1], more="replicas = 1")
    running, said = bring_up(machines, file)
    node = {
        "id": "h1",
        "is_up": True,
        "slot_count": 1,
        "address": f"127.0.0.1:{machines.port('h1')}",
    }
    told = iter(["waiting", "waiting", "waiting", "in"])
    monkeypatch.setattr(
        _ffrecord, "describe_cluster", lambda *_, **__: {"nodes": [node | {"state": next(told)}]}
    )
    let_in: list[str] = []

    def let(_: str, name: str, state: str, **__: object) -> None:
        """Fail once: the nodes that start do not say yet which cluster they are of."""
        let_in.append(f"{name} {state}")
        if len(let_in) == 1:
            raise UnavailableError("too few answer")

    monkeypatch.setattr(_ffrecord, "set_node_state", let)
    running.apply([])
    assert let_in == ["h1 in", "h1 in"]
    assert said == ["h1: approved"]


def test_a_stranger_that_waits_under_the_name_of_a_host_is_not_let_in(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, said = bring_up(machines, machines.hosts_file(NAMES[:2]))
    node = {"id": "h2", "state": "waiting", "is_up": False, "slot_count": 0}
    told = {"nodes": [node | {"address": "192.0.2.7:9400"}]}
    monkeypatch.setattr(_ffrecord, "describe_cluster", lambda *_, **__: told)
    monkeypatch.setattr(_ffrecord, "set_node_state", lambda *_, **__: pytest.fail("it is let in"))
    with pytest.raises(UnavailableError, match=r"h2: another daemon, at 192.0.2.7:9400, waits"):
        running.apply([])
    assert said == []


def test_over_ssh_a_host_is_checked_first_and_brought_up(
    machines: Machines, tmp_path: Path
) -> None:
    file = machines.hosts_file(NAMES[:1], more="replicas = 1")
    with sshd(tmp_path / "ssh", machines.path) as config:
        arguments = ("--hosts", file, "--ssh-config", config)
        before = machines.tree()
        plan = ok("ffrecord", "cluster", "up", *arguments, "--dry-run")
        assert f"h1: make {machines.folder}/disks/etcd" in plan
        assert "    lease_s = 3" in plan
        assert "h1: start ffrecord-t-h1.service" in plan
        planned = json.loads(ok("ffrecord", "cluster", "up", *arguments, "--dry-run", "--json"))
        assert [one["host"] for one in planned["changes"]] == ["h1", "h1"]
        assert planned["changes"][1]["unit"] == "ffrecord-t-h1.service"
        assert planned["changes"][1]["action"] == "start" and planned["dry_run"]
        assert machines.tree() == before

        printed = ok("ffrecord", "cluster", "up", *arguments)
        assert printed.splitlines()[-1].startswith("ready: ffrecord://127.0.0.1:")
        assert ok("ffrecord", "cluster", "up", *arguments, "--dry-run") == "nothing to do\n"
        again = json.loads(ok("ffrecord", "cluster", "up", *arguments, "--json"))
        assert again == {**planned, "changes": [], "dry_run": False}
        stopped = run("ffrecord", "cluster", "down", *arguments, "--json")
        assert "h1: stopped ffrecord-t-h1.service" in stopped.stderr
        assert json.loads(stopped.stdout) == {"down": ["h1"], "dry_run": False}

    # The server is gone.
    before = machines.tree()
    refused = run("ffrecord", "cluster", "up", *arguments)
    assert refused.returncode == 4
    assert "h1: ssh: " in refused.stderr
    assert "see that `ssh host-h1 true` works without a password" in refused.stderr
    assert machines.tree() == before


GOOD = """
cluster = "t"
coordinator = "etcd:http://e:2379"
[hosts.a]
ssh = "a"
data = "/d/a"
listen = "a:9400"
[hosts.b]
ssh = "b"
data = ["/d/a", "/d/b"]
listen = "0.0.0.0:9400"
advertise = "b:9400"
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('cluster = "t"', "", "`cluster` is missing"),
        ('cluster = "t"', 'cluster = "t/u"', "`cluster`: a name is letters"),
        ('cluster = "t"', 'cluster = "t"\nclock = 1', "unknown key `clock`; known are cluster"),
        ('coordinator = "etcd:http://e:2379"', "", "no etcd: set `coordinator`"),
        ('ssh = "a"', 'ssh = "a"\netcd = "/e"', "either `coordinator` names an etcd"),
        ('ssh = "a"', 'ssh = "-oProxyCommand=x"', r"\[hosts.a\]: `ssh` is not a target"),
        ('ssh = "a"', "", r"\[hosts.a\]: `ssh` is missing"),
        ('ssh = "a"', "ssh = 1", r"\[hosts.a\]: `ssh` is of the wrong type"),
        ('"/d/a", "/d/b"', '"/d/b", "/d/b"', r"\[hosts.b\]: a folder is given twice"),
        ('"/d/a", "/d/b"', '"d b"', "'d b' is not the full path"),
        ('"/d/a", "/d/b"', '"/d/../b"', "is not the full path"),
        ('"/d/a", "/d/b"', '"/d/%n"', "is not the full path"),
        ('advertise = "b:9400"', "", "cannot reach 0.0.0.0:9400: set `advertise`"),
        ('advertise = "b:9400"', 'advertise = "b"', "`advertise`: 'b' is not HOST:PORT"),
        ('advertise = "b:9400"', 'advertise = "b:94000"', "is not HOST:PORT"),
        ('advertise = "b:9400"', 'advertise = "a:9400"', "a and b both have"),
        ('listen = "a:9400"', 'listen = "a:9400"\nweight = true', "`weight` is of the wrong"),
        ('listen = "a:9400"', 'listen = "a:9400"\nweight = 0', "`weight` is a number above 0"),
        ('listen = "a:9400"', 'listen = "a:9400"\ndomain = "b"', "2 replicas need as many"),
        ("[hosts.a]", "[settings]\nnode = 'x'\n[hosts.a]", "`node` follows from the hosts"),
        ("[hosts.a]", "[settings]\nx = [1]\n[hosts.a]", "`x` is neither a number nor"),
        ("[hosts.a]", "[hosts.'a b']", "the name of a node is letters"),
        ('"t"', '"t', "hosts.toml: "),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(GOOD)
    assert [host.address for host in read_hosts_file(path).hosts] == ["a:9400", "b:9400"]
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        read_hosts_file(path)


def test_two_members_of_etcd_are_refused_and_three_are_the_coordinator(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    hosts = [
        f'[hosts.h{i}]\nssh = "h{i}"\ndata = "/d"\nlisten = "h{i}:9400"\netcd = "/e"\n'
        for i in range(3)
    ]
    path.write_text('cluster = "t"\n' + "".join(hosts[:2]))
    with pytest.raises(ValueError, match="2 hosts run etcd: take an odd number"):
        read_hosts_file(path)
    path.write_text('cluster = "t"\n' + "".join(hosts))
    assert read_hosts_file(path).coordinator == "etcd:http://h0:2379,http://h1:2379,http://h2:2379"
