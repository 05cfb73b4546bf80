"""A cluster of processes on this machine: one etcd and some daemons, on loopback."""

import contextlib
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from ffrecord._base import clock
from ffrecord._cli.admin import fetch_cluster
from ffrecord._cli.config import find_daemon
from ffrecord.errors import UnavailableError

_START_S = 60.0
_STOP_S = 20.0


@dataclass(frozen=True)
class Node:
    """One daemon of the cluster."""

    name: str
    listen: str
    admin: str


class LocalCluster:
    """Runs until the block is left. Ports are kept in the folder, so that addresses stay."""

    def __init__(
        self,
        folder: pathlib.Path,
        node_count: int,
        replicas: int,
        *,
        repair_after_s: int = 600,
        lease_s: int = 5,
        program: str | None = None,
    ) -> None:
        """Nothing runs yet. `program`: the daemon; that of this package if it is not given.

        Raises:
            ValueError: more replicas than nodes, or the folder has a cluster of another size.
            FileNotFoundError: etcd or ffrecordd is not installed.
        """
        if replicas > node_count:
            raise ValueError(
                f"{replicas} replicas need as many nodes, and there are {node_count}:"
                " raise --nodes or lower --replicas"
            )
        etcd = shutil.which("etcd")
        if etcd is None:
            raise FileNotFoundError(
                None, "etcd is not in PATH; install the package etcd-server, or etcd itself"
            )
        self._etcd_program, self._daemon_program = etcd, program or find_daemon()
        self.folder = folder
        self.replicas = replicas
        self._repair_after_s, self._lease_s = repair_after_s, lease_s
        self._etcd_ports, self.nodes = _ports_of(folder, node_count)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._is_stopped = False  # By a signal.

    @property
    def address(self) -> str:
        """ffrecord://host:port,host:port,..., without a name."""
        return "ffrecord://" + ",".join(node.listen for node in self.nodes)

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """The process of a node, or of "etcd"."""
        return self._processes[name]

    def runs(self, name: str) -> bool:
        """Whether a node, or "etcd", was started and has not ended."""
        return name in self._processes and self._processes[name].poll() is None

    def start(self, name: str, *, program: str | None = None) -> None:
        """Start a node, or "etcd"; it need not be ready on return.

        `program`: another daemon for this node, such as that of an earlier release.
        """
        if name == "etcd":
            command = self._etcd_command()
        else:
            command = self._node_command(self._find(name), program or self._daemon_program)
        with (self.folder / f"{name}.log").open("ab") as log:
            # A Ctrl-C of the terminal is for us: the daemons are stopped in order.
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """Send a signal to a node, or to "etcd", and wait for its end."""
        process = self._processes.pop(name)
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait_ready(self, timeout_s: float = _START_S) -> None:
        """Return when every node has its lease and slots are placed on all that take part.

        Raises:
            UnavailableError: a process has ended, or it takes longer.
        """
        end = clock.now() + timeout_s
        for node in self.nodes:
            while not self._is_ready(node):
                self._check_alive()
                if clock.now() > end:
                    raise UnavailableError(
                        f"{node.name} is not ready after {timeout_s:.0f} s;"
                        f" see {self.folder / node.name}.log"
                    )
                self._wait(0.05)

    def describe(self) -> str:
        """For people: addresses, admin ports and processes of all nodes."""
        lines = [
            f"{node.name}: {node.listen}, admin port http://{node.admin},"
            f" process {self._processes[node.name].pid}"
            for node in self.nodes
        ]
        return "\n".join([*lines, f"ready: {self.address}/"])

    def facts(self) -> dict[str, Any]:
        """For programs: what `describe` says."""
        nodes = [
            {
                "id": node.name,
                "address": node.listen,
                "admin": f"http://{node.admin}",
                "process": self._processes[node.name].pid,
            }
            for node in self.nodes
        ]
        return {"address": f"{self.address}/", "nodes": nodes}

    def watch(self, say: Callable[[str], None]) -> NoReturn:
        """Tell of every process that ends, as long as `until_stopped` lets it."""
        ended: set[str] = set()
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None and name not in ended:
                    ended.add(name)
                    say(f"{name} has ended with {process.returncode}: see {name}.log")
            self._wait(0.2)

    @contextlib.contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Ctrl-C or SIGTERM ends the block, without an error, where it waits for the daemons.

        Not elsewhere: a process that has just been started would be left behind. Both signals count
        also where a shell has started us in the background.
        """

        def stop(*_: object) -> None:
            self._is_stopped = True

        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, stop) for number in numbers]
        try:
            yield
        except KeyboardInterrupt:
            pass
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def __enter__(self) -> Self:
        """Start all, and wait until they serve."""
        try:
            for name in ["etcd", *(node.name for node in self.nodes)]:
                self.start(name)
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the nodes, then etcd."""
        nodes = [name for name in self._processes if name != "etcd"]
        for name in nodes:  # All at once.
            with contextlib.suppress(ProcessLookupError):
                self._processes[name].send_signal(signal.SIGCONT)
                self._processes[name].terminate()
        for name in [*nodes, *(["etcd"] if "etcd" in self._processes else [])]:
            self.stop(name)

    def _wait(self, seconds: float) -> None:
        clock.sleep(seconds)
        if self._is_stopped:
            raise KeyboardInterrupt

    def _find(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def _is_ready(self, node: Node) -> bool:
        try:
            facts = fetch_cluster(node.admin, 1.0)
        except OSError:
            return False
        # Nodes that an operator took out need no slots.
        settled = [
            one["id"]
            for one in facts["nodes"]
            if one["is_up"] and (one["slots"] > 0 or one["state"] in ("draining", "out"))
        ]
        return bool(facts["leased"]) and len(settled) >= len(self.nodes)

    def _check_alive(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise UnavailableError(
                    f"{name} has ended with {process.returncode}; see {self.folder / name}.log"
                )

    def _etcd_command(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
        return [
            *(self._etcd_program, "--name", "local", "--data-dir", str(self.folder / "etcd")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"local={peer}", "--logger", "zap"),
        ]

    def _node_command(self, node: Node, program: str) -> list[str]:
        return [
            *(program, "--data", str(self.folder / node.name)),
            *("--listen", node.listen, "--admin", node.admin),
            *("--cluster", "local", "--node", node.name),
            *("--coordinator", f"etcd:http://127.0.0.1:{self._etcd_ports[0]}"),
            *("--replicas", str(self.replicas), "--lease-s", str(self._lease_s)),
            *("--repair-after-s", str(self._repair_after_s), "--approval", "automatic"),
        ]


def _ports_of(folder: pathlib.Path, node_count: int) -> tuple[tuple[int, int], list[Node]]:
    """The ports that the folder keeps; new ones if it is new.

    Raises:
        ValueError: it has a cluster of another size, or its file is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ports.json"
    if not path.exists():
        path.write_text(json.dumps(_free_ports(2 + 2 * node_count)) + "\n")
    text = path.read_text()
    if not re.fullmatch(r"\[\d{1,5}(, \d{1,5})*\]\n", text):
        raise ValueError(f"{path} is damaged: it must hold a list of ports")
    ports: list[int] = json.loads(text)
    if len(ports) != 2 + 2 * node_count:
        raise ValueError(
            f"{folder} has a cluster of {len(ports) // 2 - 1} nodes, not {node_count}:"
            " give its --nodes, or another folder"
        )
    nodes = [
        Node(
            f"n{number}",
            f"127.0.0.1:{ports[2 * number]}",
            f"127.0.0.1:{ports[2 * number + 1]}",
        )
        for number in range(1, node_count + 1)
    ]
    return (ports[0], ports[1]), nodes


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
