"""A cluster under test: etcd and daemons, each a process on a host of its own, and their faults."""

import contextlib
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import harness
from network import Host, Network

ETCD_PORT, ETCD_PEER_PORT, PORT, ADMIN_PORT = 2379, 2380, 9400, 9401
START_S, STOP_S = 60.0, 20.0
CLIENT = "client"


@dataclass(frozen=True)
class Shape:
    """The parts of a cluster."""

    nodes: int
    members: int = 3  # Members of etcd.
    replicas: int = 2
    lease_s: int = 3
    more: tuple[str, ...] = ()  # Flags of every daemon.
    hosts: tuple[str, ...] = ()  # That are neither; what runs there is not the bed's.


@dataclass
class Member:
    """A process of the cluster and where it listens."""

    host: Host
    port: int
    second_port: int  # A daemon's admin port, a member's port for the others.
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"{self.host.address}:{self.port}"


class Bed:
    """A cluster that serves until the block is left. Everything is ended and removed then."""

    def __init__(self, settings: harness.Settings, folder: pathlib.Path, shape: Shape) -> None:
        """Nothing runs yet."""
        self.settings, self.folder, self.shape = settings, folder, shape
        self.daemon_program = settings.programs.parent / "server" / "ffrecordd"
        if not self.daemon_program.exists():
            raise harness.Unable("ffrecordd is not built: the server's packages are missing")
        self._etcd_program = harness.foreign("etcd", "etcd-server")
        nodes = [f"n{number}" for number in range(1, shape.nodes + 1)]
        members = [f"e{number}" for number in range(1, shape.members + 1)]
        self.network = Network([CLIENT, *nodes, *members, *shape.hosts])
        hosts = self.network.hosts
        self.client = hosts[CLIENT]
        self.nodes = {name: _member(hosts[name], PORT, ADMIN_PORT) for name in nodes}
        self.members = {name: _member(hosts[name], ETCD_PORT, ETCD_PEER_PORT) for name in members}
        self._stack = contextlib.ExitStack()

    @property
    def address(self) -> str:
        """ffrecord://host:port,host:port,..., without a name."""
        return "ffrecord://" + ",".join(node.address for node in self.nodes.values())

    def __enter__(self) -> "Bed":
        """Start everything, and wait until it serves."""
        try:
            # As a Ctrl-C: all that was made is removed.
            before = signal.signal(signal.SIGTERM, signal.default_int_handler)
            self._stack.callback(signal.signal, signal.SIGTERM, before)
            self._stack.enter_context(self.network)
            self._stack.callback(self._end_all)
            for name in [*self.members, *self.nodes]:
                self.start(name)
            self.wait_ready()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self._stack.close()

    # --- Processes ---

    def find(self, name: str) -> Member:
        """A daemon, or a member of etcd."""
        return self.nodes[name] if name in self.nodes else self.members[name]

    def start(self, name: str) -> None:
        """Start a process; it need not be ready on return."""
        member = self.find(name)
        words = self._daemon_words(name) if name in self.nodes else self._etcd_words(name)
        with (self.folder / f"{name}.log").open("ab") as log, member.host.inside():
            member.process = subprocess.Popen(
                words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process that runs."""
        process = self.find(name).process
        assert process is not None
        process.send_signal(number)

    def kill(self, name: str) -> None:
        """End a process without a word."""
        self.signal(name, signal.SIGKILL)
        process = self.find(name).process
        assert process is not None
        process.wait()

    def _end_all(self) -> None:
        running = [
            member.process
            for member in [*self.nodes.values(), *self.members.values()]
            if member.process is not None and member.process.poll() is None
        ]
        for process in running:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        end = time.monotonic() + STOP_S
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _etcd_words(self, name: str) -> list[str]:
        member = self.members[name]
        client = f"http://{member.address}"
        peers = {
            one: f"http://{at.host.address}:{at.second_port}" for one, at in self.members.items()
        }
        return [
            *(self._etcd_program, "--name", name, "--data-dir", str(self.folder / name)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peers[name], "--initial-advertise-peer-urls", peers[name]),
            *("--initial-cluster", ",".join(f"{one}={at}" for one, at in peers.items())),
            *("--logger", "zap"),
        ]

    def _daemon_words(self, name: str) -> list[str]:
        node = self.nodes[name]
        coordinator = ",".join(f"http://{member.address}" for member in self.members.values())
        return [
            *(str(self.daemon_program), "--data", str(self.folder / name)),
            *("--listen", node.address, "--admin", f"{node.host.address}:{node.second_port}"),
            *("--insecure", "--transport", "tcp", "--cluster", "bench", "--node", name),
            *("--approval", "automatic"),
            *("--coordinator", f"etcd:{coordinator}"),
            *("--replicas", str(self.shape.replicas), "--lease-s", str(self.shape.lease_s)),
            *self.shape.more,
        ]

    # --- What they say ---

    def fetch(self, member: Member, port: int, path: str, timeout_s: float = 2.0) -> str:
        """Ask a process over HTTP, from the host of the clients."""
        url = f"http://{member.host.address}:{port}{path}"
        with self.client.inside(), urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return str(answer.read().decode())

    def facts(self, name: str) -> dict[str, object]:
        """A node's knowledge of its cluster."""
        node = self.nodes[name]
        found = json.loads(self.fetch(node, node.second_port, "/cluster"))
        assert isinstance(found, dict)
        return found

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until every node has its lease, its share of the slots and all of its extents."""
        for name in self.nodes:
            is_whole = functools.partial(self._is_whole, name)
            self.wait_until(is_whole, f"{name} is whole", timeout_s)

    def _is_whole(self, name: str) -> bool:
        facts = self.facts(name)
        nodes = facts["nodes"]
        assert isinstance(nodes, list)
        placed = [one for one in nodes if one["is_up"] and one["slots"] > 0]
        is_still = not facts["moving"] and not facts["missing"]
        return bool(facts["leased"]) and is_still and len(placed) == len(self.nodes)

    def wait_until(
        self,
        is_true: Callable[[], bool],
        what: str,
        timeout_s: float = START_S,
        pause_s: float = 0.05,
    ) -> None:
        """Ask again and again; a process that does not answer says no."""
        end = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(OSError):
                if is_true():
                    return
            if time.monotonic() > end:
                raise harness.Unable(f"not after {timeout_s:.0f} s: {what}; logs: {self.folder}")
            time.sleep(pause_s)

    def leader(self) -> str:
        """The member of etcd that leads."""

        def leads(name: str) -> bool:
            text = self.fetch(self.members[name], self.members[name].port, "/metrics")
            return re.search(r"^etcd_server_is_leader 1$", text, re.MULTILINE) is not None

        found: list[str] = []

        def is_known() -> bool:
            found[:] = [name for name in self.members if leads(name)]
            return len(found) == 1

        self.wait_until(is_known, "one member of etcd leads")
        return found[0]

    def quorum_at(self, names: list[str]) -> int:
        """Wait until one of these members of etcd reads what all have agreed on.

        Returns when that read began, in nanoseconds: a little before the quorum, if at all.
        """
        began: list[int] = []

        def has_quorum() -> bool:
            for name in names:
                began[:] = [time.monotonic_ns()]
                member = self.members[name]
                with contextlib.suppress(OSError, ValueError):
                    text = self.fetch(member, member.port, "/health", 0.2)
                    if json.loads(text).get("health") == "true":
                        return True
            return False

        self.wait_until(has_quorum, "etcd has a quorum", pause_s=0.01)
        return began[0]

    # --- Clients ---

    def program(self, name: str) -> str:
        """A benchmark program of ours."""
        return str(harness.program(self.settings, name))

    def run_json(self, *words: object) -> dict[str, object]:
        """Run a client that prints one JSON object."""
        with self.client.inside():
            return harness.run_json(*words)

    def publish(self, name: str, file: pathlib.Path, copies: int) -> str:
        """Publish a dataset of that many equal files; return its address."""
        address = f"{self.address}/{name}"
        self.run_json(self.program("daemon-arm"), "publish", file, address, copies)
        return address


def _member(host: Host, port: int, second_port: int) -> Member:
    return Member(host, host.port(port), host.port(second_port))


@dataclass
class Batches:
    """Batches that a client has read, in order; times are nanoseconds of the monotonic clock."""

    end_ns: list[int] = field(default_factory=list)
    duration_ns: list[int] = field(default_factory=list)
    failed: list[bool] = field(default_factory=list)

    def within(self, begin_ns: int, end_ns: int) -> list[int]:
        """Durations of the batches that ended in that time."""
        return [
            duration
            for at, duration in zip(self.end_ns, self.duration_ns, strict=True)
            if begin_ns <= at < end_ns
        ]

    def failed_since(self, begin_ns: int) -> int:
        """How many have failed from then on."""
        return sum(
            failed and at >= begin_ns for at, failed in zip(self.end_ns, self.failed, strict=True)
        )


class Reader:
    """A client that reads random batches, until the block is left."""

    def __init__(self, bed: Bed, address: str, batch: int, seed: int, batches_per_s: float) -> None:
        """Start it; batches begin at that rate, or as soon as the last one has ended."""
        words = [bed.program("cluster-arm"), "read", address, batch, seed, batches_per_s]
        with bed.client.inside():
            self._process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        self.batches = Batches()
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def wait_began(self) -> None:
        """Wait for its first batch."""
        if not self._began.wait(START_S) or not self.batches.end_ns:
            self.stop()
            raise harness.Unable("a client reads nothing; what it says stands above")

    def stop(self) -> Batches:
        """Have it end, and return all batches."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        if self._process.returncode:
            self.batches.end_ns.append(time.monotonic_ns())
            self.batches.duration_ns.append(0)
            self.batches.failed.append(True)
        return self.batches

    def _take(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            end_ns, duration_ns, failed = line.split()
            self.batches.end_ns.append(int(end_ns))
            self.batches.duration_ns.append(int(duration_ns))
            self.batches.failed.append(failed == "1")
            self._began.set()
        self._began.set()


@contextlib.contextmanager
def readers(
    bed: Bed, address: str, count: int, batch: int, seed: int, batches_per_s: float
) -> Iterator[list[Reader]]:
    """Run clients that read, each on its own; all have begun, and are ended with the block."""
    running = [
        Reader(bed, address, batch, seed * count + number, batches_per_s) for number in range(count)
    ]
    try:
        for one in running:
            one.wait_began()
        yield running
    finally:
        for one in running:
            one.stop()


@contextlib.contextmanager
def folder_in(scratch: pathlib.Path) -> Iterator[pathlib.Path]:
    """A new folder, which is removed unless the block fails: logs say why."""
    path = scratch / f"cluster-{os.getpid()}-{time.monotonic_ns()}"
    path.mkdir()
    try:
        yield path
    except KeyboardInterrupt:
        _remove(path)
        raise
    _remove(path)


def _remove(path: pathlib.Path) -> None:
    subprocess.run(["rm", "-rf", str(path)], check=True)
