"""Ranks and a daemon in namespaces, whose links collectives and storage share.

Each rank has two links: eth0, on which its collectives travel, and eth1. Both are limited by HTB,
in both directions. The daemon answers on both, and its own links are not limited.
"""

import collections
import contextlib
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import harness
from links import ip, tc

NETWORKS = ("10.77.0", "10.78.0")  # Of eth0 and eth1.
STORE = 200  # The last number of the daemon's addresses.
WIDE_MBIT = 40_000  # As good as no limit.
# Classes of eth0, below 1:1, which is the link.
_SHARED, _LOW, _CAPPED = 10, 20, 30


class Links:
    """The namespaces, and how traffic to the daemon is treated on eth0."""

    def __init__(self, tag: str, ranks: int, mbit: int) -> None:
        """Use namespaces that `contended` has made."""
        self.ranks = [f"{tag}-{rank}" for rank in range(ranks)]
        self.store = f"{tag}-store"
        self.mbit = mbit  # At first, and as the arms receive it.
        self._mbit = mbit  # Now.
        self._tag = tag

    def hosts(self) -> list[str]:
        """The address of each rank on eth0."""
        return [f"{NETWORKS[0]}.{rank + 1}" for rank in range(len(self.ranks))]

    def limit(self, mbit: int) -> None:
        """Change the rate of all links."""
        self._mbit = mbit
        for space, device in self._limited():
            tc(space, f"class change dev {device} classid 1:1 {_rates(mbit)}")
            tc(space, f"class change dev {device} parent 1:1 classid 1:{_SHARED} {_rates(mbit)}")

    def limit_store(self, mbit: int) -> None:
        """Limit the daemon's link on eth0, in both directions; once."""
        for space, device in (
            (self.store, "eth0"),
            (self._tag, f"port{len(self.ranks)}-0"),
        ):
            tc(space, f"qdisc add dev {device} root handle 1: htb default {_SHARED}")
            tc(space, f"class add dev {device} parent 1: classid 1:{_SHARED} {_rates(mbit)}")

    def share(self) -> None:
        """All traffic waits in one queue."""
        self._send_storage_to(None, 0)

    def prefer_collectives(self) -> None:
        """Traffic to the daemon goes when nothing else waits: strict priority."""
        self._send_storage_to(_LOW, self._least())

    def cap(self, mbit: float) -> None:
        """Traffic to the daemon has a limit of its own."""
        for space in self.ranks:
            words = f"rate {mbit:.3f}mbit ceil {mbit:.3f}mbit"
            tc(space, f"class change dev eth0 parent 1:1 classid 1:{_CAPPED} htb {words}")
        self._send_storage_to(_CAPPED, mbit)

    def _least(self) -> float:
        """The rate of a class that HTB serves only when nothing else waits; it cannot be 0."""
        return self.mbit / 100

    def _send_storage_to(self, class_: int | None, assured_mbit: float) -> None:
        """HTB serves every class its assured rate, so all of them add up to that of the link."""
        words = _rates(self._mbit, self._mbit - assured_mbit)
        for space in self.ranks:
            tc(space, f"class change dev eth0 parent 1:1 classid 1:{_SHARED} {words}")
            subprocess.run(
                ["tc", "-n", space, "filter", "del", "dev", "eth0", "parent", "1:"],
                capture_output=True,
                check=False,
            )
            if class_ is not None:
                match = f"match ip dst {NETWORKS[0]}.{STORE}/32 flowid 1:{class_}"
                tc(space, f"filter add dev eth0 parent 1: protocol ip prio 1 u32 {match}")

    def _limited(self) -> list[tuple[str, str]]:
        """Both ends of each rank's links, and the device there."""
        return [
            place
            for rank, space in enumerate(self.ranks)
            for number in range(len(NETWORKS))
            for place in ((space, f"eth{number}"), (self._tag, f"port{rank}-{number}"))
        ]

    def shape(self) -> None:
        """Limit all links."""
        for space, device in self._limited():
            tc(space, f"qdisc add dev {device} root handle 1: htb default {_SHARED}")
            tc(space, f"class add dev {device} parent 1: classid 1:1 {_rates(self.mbit)}")
            for class_, words in (
                (_SHARED, _rates(self.mbit)),
                (_LOW, f"htb rate {self._least():.3f}mbit ceil {self.mbit}mbit prio 7"),
                (_CAPPED, f"htb rate {self.mbit}mbit prio 0"),
            ):
                tc(space, f"class add dev {device} parent 1:1 classid 1:{class_} {words}")


def _rates(mbit: int, assured_mbit: float | None = None) -> str:
    """Up to a rate, of which all are assured by default; a millisecond of it goes at once."""
    assured = mbit if assured_mbit is None else assured_mbit
    burst = f"{max(64, mbit // 8)}kb"
    return f"htb rate {assured:.3f}mbit ceil {mbit}mbit burst {burst} cburst {burst} prio 0"


@contextlib.contextmanager
def contended(ranks: int, mbit: int, name: str = "ffo") -> Iterator[Links]:
    """Make the namespaces, whose names begin with `name`; remove them at the end.

    Raises:
        harness.Unable: no privileges, or no `ip` or `tc`.
    """
    tag = f"{name}{os.getpid() % 100_000}"
    links = Links(tag, ranks, mbit)
    spaces = [*links.ranks, links.store]
    numbers = [*range(1, ranks + 1), STORE]
    try:
        ip("netns", "add", tag)
        for number in range(len(NETWORKS)):
            ip("-n", tag, "link", "add", f"bridge{number}", "type", "bridge")
            ip("-n", tag, "link", "set", f"bridge{number}", "up")
        for index, (space, host) in enumerate(zip(spaces, numbers, strict=True)):
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            for number, network in enumerate(NETWORKS):
                port, card = f"port{index}-{number}", f"eth{number}"
                ip("-n", tag, "link", "add", port, "type", "veth", "peer", card, "netns", space)
                ip("-n", tag, "link", "set", port, "master", f"bridge{number}", "up")
                ip("-n", space, "addr", "add", f"{network}.{host}/24", "dev", card)
                ip("-n", space, "link", "set", card, "up")
        links.shape()
        yield links
    finally:
        for name in [*spaces, tag]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextlib.contextmanager
def daemon(settings: harness.Settings, links: Links, data: pathlib.Path) -> Iterator[int]:
    """Run a daemon in its namespace; yields its port, which is the same at both addresses."""
    server = settings.programs.parent / "server" / "ffrecordd"
    if not server.exists():
        raise harness.Unable(f"{server} is not built: the server's packages are missing")
    words = ["ip", "netns", "exec", links.store, str(server), "--data", str(data)]
    words += ["--listen", "0.0.0.0:0", "--insecure"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            log = []
            for line in process.stderr:
                log.append(line)
                if match := re.search(r"event=ready listen=\S+:(\d+)", line):
                    break
            else:
                raise harness.Unable("the daemon did not start: " + "".join(log))
            with ThreadPoolExecutor(1) as drain:  # The daemon logs every save.
                drain.submit(collections.deque, process.stderr, 0)
                yield int(match[1])
                process.terminate()
        finally:
            process.terminate()
            process.wait()
