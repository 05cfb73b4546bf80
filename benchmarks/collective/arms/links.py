"""Links of a given rate: namespaces that a bridge joins, and what their links carry."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

import harness

IPERF_SECONDS = 1


def ip(*words: str) -> None:
    """Run `ip`."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise harness.Unable(
            f"ip {' '.join(words)}: {done.stderr.strip()}; namespaces need root and iproute2"
        )


@contextlib.contextmanager
def shaped(ranks: int, mbit: int) -> Iterator[list[str]]:
    """Namespaces joined by a bridge, each link limited both ways; yields their names."""
    tag = f"ffr{os.getpid() % 100_000}"
    names = [f"{tag}-{rank}" for rank in range(ranks)]
    limit = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "128kb", "latency", "30ms"]
    try:
        ip("netns", "add", tag)
        ip("-n", tag, "link", "add", "bridge", "type", "bridge")
        ip("-n", tag, "link", "set", "bridge", "up")
        for rank, name in enumerate(names):
            ip("netns", "add", name)
            port = f"port{rank}"
            ip("-n", tag, "link", "add", port, "type", "veth", "peer", "eth0", "netns", name)
            ip("-n", tag, "link", "set", port, "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
            for space, device in ((name, "eth0"), (tag, port)):
                subprocess.run(
                    ["tc", "-n", space, "qdisc", "add", "dev", device, *limit], check=True
                )
        yield names
    finally:
        for name in [*names, tag]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def iperf_bytes_per_s(names: list[str]) -> float:
    """The rate of one stream from the first rank's namespace to the second's."""
    iperf = harness.foreign("iperf3", "iperf3")
    inside = ["ip", "netns", "exec"]
    with subprocess.Popen(
        [*inside, names[1], iperf, "-s", "-1", "--forceflush"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            pass
        client = [*inside, names[0], iperf, "-c", "10.77.0.2", "-t", str(IPERF_SECONDS), "-J"]
        found = harness.run_json(*client)
    return float(found["end"]["sum_received"]["bits_per_second"]) / 8


def tc(space: str, words: str) -> None:
    """Run `tc` in a namespace."""
    done = subprocess.run(
        ["tc", "-n", space, *words.split()], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise harness.Unable(f"tc {words} in {space}: {done.stderr.strip()}")


def stream_ports(space: str, count: int) -> list[int]:
    """The ports here of the `count` streams to the other rank, in order."""
    listed = subprocess.run(
        ["ip", "netns", "exec", space, harness.foreign("ss", "iproute2"), "-Htn"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ports: dict[str, list[int]] = {}
    for line in listed.splitlines():
        state, _, _, here, there = line.split()[:5]
        if state == "ESTAB":
            ports.setdefault(there, []).append(int(here.rpartition(":")[2]))
    streams = [sorted(found) for found in ports.values() if len(found) == count]
    if len(streams) != 1:
        raise harness.Unable(f"{space}: which connections are the streams? {ports}")
    return streams[0]
