"""Hosts of a cluster on one machine: namespaces that a bridge joins, or loopback without them.

A host of its own namespace has an address, a link whose rate can be limited, and can be cut off
without a word to anybody: its port leaves the bridge, and its link stays up.
"""

import contextlib
import ctypes
import os
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Iterator

import harness

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Host:
    """One machine of the cluster. On loopback all hosts are one, and differ in their ports."""

    def __init__(self, name: str, address: str, space: str | None) -> None:
        """Take a namespace that exists, or none."""
        self.name, self.address, self.space = name, address, space

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets and processes that this thread makes in the block belong to the host."""
        if self.space is None:
            yield
            return
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(pathlib.Path("/run/netns") / self.space)
            yield
        finally:
            _set_namespace(home, "the first one")
            os.close(home)

    def port(self, wanted: int) -> int:
        """A port that is free here: the wanted one, but on loopback."""
        if self.space is not None:
            return wanted
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])


class Network:
    """Hosts that reach each other, until the block is left."""

    def __init__(self, names: list[str]) -> None:
        """Nothing exists yet."""
        self.is_real = has_namespaces()
        self._tag = f"ffc{os.getpid() % 100_000}"
        self.hosts: dict[str, Host] = {}
        for number, name in enumerate(names, start=1):
            space = f"{self._tag}-{name}" if self.is_real else None
            address = f"10.78.0.{number}" if self.is_real else "127.0.0.1"
            self.hosts[name] = Host(name, address, space)

    def __enter__(self) -> "Network":
        """Make the namespaces."""
        if self.is_real:
            try:
                self._make()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove them; their links go with them."""
        spaces = [host.space for host in self.hosts.values() if host.space]
        for space in [*spaces, self._tag] if self.is_real else []:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def _make(self) -> None:
        run("ip", "netns", "add", self._tag)
        run("ip", "-n", self._tag, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self._tag, "link", "set", "bridge", "up")
        for name, host in self.hosts.items():
            assert host.space is not None
            run("ip", "netns", "add", host.space)
            link = ["type", "veth", "peer", "eth0", "netns", host.space]
            run("ip", "-n", self._tag, "link", "add", name, *link)
            run("ip", "-n", self._tag, "link", "set", name, "master", "bridge", "up")
            run("ip", "-n", host.space, "addr", "add", f"{host.address}/24", "dev", "eth0")
            run("ip", "-n", host.space, "link", "set", "lo", "up")
            run("ip", "-n", host.space, "link", "set", "eth0", "up")

    def shape(self, name: str, mbit: int) -> None:
        """Limit a host's link, both ways."""
        for space, device in ((self.hosts[name].space, "eth0"), (self._tag, name)):
            assert space is not None
            limit = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "128kb", "latency", "30ms"]
            run("tc", "-n", space, "qdisc", "replace", "dev", device, *limit)

    def cut(self, name: str) -> None:
        """Lose all packets from and to a host."""
        run("ip", "-n", self._tag, "link", "set", name, "nomaster")

    def mend(self, name: str) -> None:
        """End a cut."""
        run("ip", "-n", self._tag, "link", "set", name, "master", "bridge")

    def iperf_bytes_per_s(
        self, sender: str, receiver: str, seconds: float, streams: int = 1
    ) -> float:
        """The rate of so many streams from a host to another.

        Raises:
            Missing: iperf3 is not installed.
        """
        iperf = harness.foreign("iperf3", "iperf3")
        there = self.hosts[receiver]
        port = there.port(5201)
        with there.inside():
            server = subprocess.Popen(
                [iperf, "-s", "-1", "-p", str(port), "--forceflush"],
                stdout=subprocess.PIPE,
                text=True,
            )
        with server:
            assert server.stdout is not None
            try:
                while (line := server.stdout.readline()) and "listening" not in line:
                    pass
                with self.hosts[sender].inside():
                    words = [iperf, "-c", there.address, "-p", port, "-t", seconds, "-J"]
                    words += ["-P", streams]
                    found = harness.run_json(*words)
            finally:
                server.terminate()
        return float(found["end"]["sum_received"]["bits_per_second"]) / 8


def has_namespaces() -> bool:
    """Whether this process may make namespaces and shape links."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        return False
    name = f"ffc{os.getpid() % 100_000}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        return False
    limit = ["qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1gbit", "burst", "1mb"]
    shaped = subprocess.run(
        ["tc", "-n", name, *limit, "latency", "30ms"], capture_output=True, check=False
    )
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return shaped.returncode == 0


def run(*words: str) -> None:
    """Run a command of iproute2."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise harness.Unable(f"{' '.join(words)}: {done.stderr.strip()}")


def _enter(path: pathlib.Path) -> None:
    there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set_namespace(there, str(path))
    finally:
        os.close(there)


def _set_namespace(descriptor: int, what: str) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {what}")
