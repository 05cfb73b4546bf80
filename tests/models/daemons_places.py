"""A cluster, a daemon by itself and a second cluster for the model, and what happens to them.

There is one of each in a process: they are started when wanted, and outlive the examples, which
take prefixes that nobody has used.
"""

import atexit
import contextlib
import dataclasses
import functools
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon import Daemon, program
from ffrecord import _ffrecord
from ffrecord._cli.admin import Metrics, fetch, fetch_cluster
from ffrecord._cli.local_cluster import LocalCluster, Node
from ffrecord._cli.tokens import make_token

NODES = ("n1", "n2", "n3")
STRANGERS = ("stranger", "foreign")  # Who serve at the address of a node that is gone.
QUOTA_BYTES = 256 << 10
PREFIXES = 200  # Below which there is a quota; an upload that was given up ends before its turn.
LEASE_S = 3
DISK_MB = 160  # Of those that a rule fills; a daemon keeps part of it for deletions.
UNSETTLED = ("missing", "moving", "incomplete", "from_cache")  # What nodes say of themselves.
SETTLE_S = 60.0  # Until all is as it should be again, on a busy machine.
# A program that is killed takes what it has started along.
_LEASH = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


class Proxy:
    """Between a node and etcd: can be cut, and mended."""

    def __init__(self, port: int) -> None:
        """Listen; connections go to `port` of this machine."""
        self._to = port
        self._is_cut = False
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Nothing goes through, and connections end."""
        self._is_cut = True
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """All goes through."""
        self._is_cut = False

    def _serve(self) -> None:
        while True:
            client, _ = self._listening.accept()
            try:
                if self._is_cut:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not self._is_cut and (got := source.recv(1 << 16)):
                to.sendall(got)
        self._open -= {source, to}
        for one in (source, to):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Nodes(LocalCluster):
    """A cluster whose nodes reach etcd through proxies."""

    flags: tuple[str, ...] = ()

    def proxies_start(self) -> None:
        """Before the nodes."""
        self.proxies = {node.name: Proxy(self._etcd_ports[0]) for node in self.nodes}

    def _node_command(self, node: Node, program: str) -> list[str]:
        command = super()._node_command(node, program)
        where = f"etcd:http://127.0.0.1:{self.proxies[node.name].port}"
        command[command.index("--coordinator") + 1] = where
        return [*_LEASH, *command, *self.flags]

    def _etcd_command(self) -> list[str]:
        return [*_LEASH, *super()._etcd_command()]

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a node, or to "etcd"."""
        self.process(name).send_signal(number)

    def node(self, name: str) -> Node:
        """Return the node of that name."""
        return self._find(name)


class World:
    """All processes, and the one trouble that they may have at a time."""

    def __init__(self) -> None:
        """Start everything."""
        self.folder = Path(tempfile.mkdtemp(prefix="ffrecord-model-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self._make_tokens()
        quotas = ",".join(f"q{i}/={QUOTA_BYTES >> 10}K" for i in range(PREFIXES))
        flags = ("--quotas", quotas, "--token-keys", str(self.folder / "keys"))
        flags += ("--upload-grace-s", "120", "--cores", "1", "--log-level", "info")
        self._flags = flags
        small = [self.folder / "alone", *(self.folder / "cluster" / name for name in NODES)]
        self.has_small_disks = small_disks(small)
        self.cluster = self._start_cluster("cluster", 3, 2, flags)
        self.other = self._start_cluster("other", 1, 1, flags)
        self.alone_admin = f"127.0.0.1:{_free_port()}"
        self.alone = Daemon(
            self.folder / "alone", *flags, "--admin", self.alone_admin, prefix=_LEASH
        )
        self.alone.start()
        atexit.register(lambda: self.alone.__exit__())
        self.stranger = Daemon(self.folder / "stranger", *flags, prefix=_LEASH)
        self._bound = socket.socket()  # Nobody else gets its port, and nobody listens there.
        self._bound.bind(("127.0.0.1", 0))
        self.dead = f"127.0.0.1:{self._bound.getsockname()[1]}"
        self.trouble: tuple[str, str] | None = None  # Kind, and node or "etcd".
        self._undo: Callable[[], None] = lambda: None

    def _make_tokens(self) -> None:
        key = secrets.token_bytes(32)
        keys = self.folder / "keys"
        keys.touch(0o600)
        keys.write_text(key.hex() + "\n")
        rights = ("read", "write", "delete", "admin")
        self._key = key
        self._write_token("any", "", rights)
        for i in range(PREFIXES):
            self._write_token(f"q{i}", f"q{i}/", rights[:3])

    def _write_token(self, client: str, prefix: str, rights: tuple[str, ...]) -> None:
        expires_s = int(time.time()) + 86_400
        token = make_token(
            self._key, prefix=prefix, rights=rights, expires_s=expires_s, client=client
        )
        (self.folder / client).touch(0o600)
        (self.folder / client).write_text(token + "\n")

    def _start_cluster(self, name: str, count: int, replicas: int, flags: tuple[str, ...]) -> Nodes:
        cluster = Nodes(
            self.folder / name,
            count,
            replicas,
            repair_after_s=2,
            lease_s=LEASE_S,
            program=program(),
        )
        cluster.flags = flags
        cluster.proxies_start()
        cluster.__enter__()
        atexit.register(cluster.__exit__)
        return cluster

    # Addresses.

    def host(self, name: str) -> str:
        """Return the address of a node, of "alone", "other" or "dead"."""
        if name in NODES:
            return self.cluster.node(name).listen
        return {
            "alone": self.alone.listen,
            "other": self.other.nodes[0].listen,
            "dead": self.dead,
        }[name]

    def address(self, hosts: tuple[str, ...], name: str, client: str = "any") -> str:
        """Return the address of a dataset or a prefix at these daemons, for a client."""
        listed = ",".join(self.host(each) for each in hosts)
        return f"ffrecord://{listed}/{name}?token_file={self.folder / client}"

    # Trouble.

    def trouble_node(self, kind: str, name: str) -> None:
        """Let something happen to a node, until `mend`."""
        cluster = self.cluster
        if kind in ("stop", "kill", "wipe", *STRANGERS):
            cluster.stop(name, signal.SIGTERM if kind == "stop" else signal.SIGKILL)
            self._undo = lambda: cluster.start(name)
            if kind == "wipe":
                for each in (cluster.folder / name).iterdir():  # The folder may be a disk.
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
            if kind in STRANGERS:
                self._begin_stranger(name, kind)
        elif kind == "freeze":
            cluster.signal(name, signal.SIGSTOP)
            self._undo = lambda: cluster.signal(name, signal.SIGCONT)
        elif kind == "cut":
            cluster.proxies[name].cut()
            self._undo = cluster.proxies[name].mend
        elif kind == "full":
            fill(cluster.folder / name)
            self._undo = lambda: make_room(cluster.folder / name)
        elif kind == "drain":
            self._set_state(name, "draining")
            self._undo = lambda: self._set_state(name, "in")
        self.trouble = (kind, name)

    def _begin_stranger(self, name: str, kind: str) -> None:
        """Serve at the node's address: a daemon by itself, or the node of a third cluster."""
        if kind == "stranger":
            self.stranger.listen = self.host(name)
            self.stranger.start()
        else:
            third = self._third()
            third.nodes = [dataclasses.replace(third.nodes[0], listen=self.host(name))]
            third.start("n1")
            third.wait_ready(SETTLE_S)

        def undo() -> None:
            self.stranger.stop() if kind == "stranger" else self._third().stop("n1")
            self.cluster.start(name)

        self._undo = undo

    @functools.cache  # noqa: B019 (there is one world)
    def _third(self) -> Nodes:
        third = self._start_cluster("third", 1, 1, self._flags)
        third.stop("n1")
        return third

    def _set_state(self, name: str, state: str) -> None:
        end = time.monotonic() + SETTLE_S
        while True:
            try:
                return _ffrecord.set_node_state(self.address(NODES, ""), name, state)
            except OSError:  # Right after trouble, the nodes may not know it yet.
                if time.monotonic() > end:
                    raise

    def trouble_etcd(self, kind: str) -> None:
        """Let something happen to etcd, until `mend`."""
        cluster = self.cluster
        if kind == "kill":
            cluster.stop("etcd", signal.SIGKILL)
            self._undo = lambda: cluster.start("etcd")
        elif kind == "freeze":
            cluster.signal("etcd", signal.SIGSTOP)
            self._undo = lambda: cluster.signal("etcd", signal.SIGCONT)
        else:
            for proxy in cluster.proxies.values():
                proxy.cut()
            self._undo = lambda: [proxy.mend() for proxy in cluster.proxies.values()] and None
        self.trouble = (kind, "etcd")

    def mend(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """End the trouble, and wait until every node takes part again."""
        if self.trouble is None:
            return
        kind, _ = self.trouble
        undo, self._undo = self._undo, lambda: None
        undo()
        meanwhile()
        self.trouble = None
        self.cluster.wait_ready(SETTLE_S)
        if kind == "wipe":  # Until then, another node may have the only replicas.
            self.await_filled()

    def await_filled(self) -> None:
        """Return once every extent is where it should be."""
        end = time.monotonic() + SETTLE_S
        while True:
            facts = [fetch_cluster(node.admin, 5.0) for node in self.cluster.nodes]
            if not any(one[each] for one in facts for each in UNSETTLED):
                return
            assert time.monotonic() < end, f"the cluster is not filled again: {facts}"
            time.sleep(0.05)

    # Disks.

    def extents(self, place: str, start: bytes) -> list[tuple[str, Path]]:
        """Return node and file of each extent that begins with these bytes."""
        if place == "alone":
            folders = {"alone": self.folder / "alone"}
        else:
            folders = {name: self.cluster.folder / name for name in NODES}
        found = []
        for node, folder in folders.items():
            for path in (folder / "extents").glob("*/*"):
                # A trailer follows the data.
                if (
                    path.stat().st_size - len(start) in range(1 << 14)
                    and path.read_bytes()[: len(start)] == start
                ):
                    found.append((node, path))
        return found

    def metrics(self, node: str) -> Metrics:
        """Return the counters of a node, or of "alone"."""
        where = self.alone_admin if node == "alone" else self.cluster.node(node).admin
        return fetch(f"http://{where}", 5.0)


def fill(disk: Path) -> None:
    """Leave no room on a disk."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass


def make_room(disk: Path) -> None:
    """Take away what fills it."""
    (disk / "filler").unlink()


def small_disks(folders: list[Path]) -> bool:
    """Make each folder a disk of its own, until this process ends; False: this user may not."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    # It sees the end of this process, however that ends.
    unmount = ["sh", "-c", 'cat; umount --lazy "$@"', "sh", *map(str, folders)]
    watch = subprocess.Popen(
        unmount, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    atexit.register(watch.communicate)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs"]
    return all(
        subprocess.run([*mount, str(folder)], check=False, capture_output=True).returncode == 0
        for folder in folders
    )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@functools.cache
def world() -> World:
    """Return the one that this process has."""
    return World()


# When the model is loaded: whoever runs it sees a skip, and no failure.
if shutil.which("etcd") is None:
    pytest.skip("no etcd here: the package etcd-server is not installed")
program()
