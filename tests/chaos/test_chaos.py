"""Goal: clients of a daemon in trouble get no wrong byte, end in time, and lose nothing promised.

Method: readers and publishers in processes of their own; a daemon in a network namespace, on a disk
of a few megabytes. At random, from a seed that is printed, it is killed and started again, stopped
and continued, cut off, or its disk is filled. Then all is mended, and everything is looked at.
Longer: `tests/chaos/campaign`.
"""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import clients
from surroundings import Disk, Link

import ffrecord
from daemon import Daemon

TIMEOUT_S = 4.0
READERS = 3
PUBLISHERS = 2


class Chaos:
    """Faults, each of which is over when its method returns."""

    def __init__(self, seed: int, daemon: Daemon, link: Link, disk: Disk) -> None:
        self.random = random.Random(seed)
        self.daemon, self.link, self.disk = daemon, link, disk
        self.kinds = [self.kill, self.freeze, self.calm]
        if not link.why_absent:
            self.kinds.append(self.cut)
        if not disk.why_absent:
            self.kinds.append(self.fill)

    def wait(self, least_s: float, most_s: float) -> None:
        """Sleep for a time by chance."""
        time.sleep(self.random.uniform(least_s, most_s))

    def kill(self) -> None:
        """Kill the daemon and start it again."""
        self.daemon.kill()
        self.wait(0, 0.5)
        self.daemon.start()

    def freeze(self) -> None:
        """Stop it, and let it go on."""
        self.daemon.freeze()
        self.wait(0.2, 2)
        self.daemon.thaw()

    def cut(self) -> None:
        """Take the link away for a while."""
        self.link.cut()
        self.wait(0.2, 2)
        self.link.mend()

    def fill(self) -> None:
        """Fill the disk, perhaps with a kill in the middle."""
        self.disk.fill()
        self.wait(0.3, 1.5)
        is_killed = self.random.random() < 0.3
        if is_killed:
            self.daemon.kill()
        self.disk.empty()
        if is_killed:
            self.daemon.start()

    def calm(self) -> None:
        """Leave everything alone, so that something gets done."""
        self.wait(0.3, 1)

    def rage(self, seconds: float) -> Counter[str]:
        """Every kind of fault, in an order by chance, again and again."""
        done: Counter[str] = Counter()
        deadline = time.monotonic() + seconds
        while True:
            for fault in self.random.sample(self.kinds, len(self.kinds)):
                if time.monotonic() > deadline and len(done) == len(self.kinds):
                    return done
                fault()
                done[fault.__name__] += 1


def said(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()]


def check_published(daemon: Daemon, outcomes: list[dict[str, Any]]) -> Counter[str]:
    """What was acknowledged is there; what was not is there whole, or not at all."""
    fates: Counter[str] = Counter()
    for outcome in outcomes:
        address = daemon.address(outcome["name"])
        try:
            found = list(map(bytes, ffrecord.open(address).read(range(5))))
        except FileNotFoundError:
            assert outcome["error"] is not None, f"acknowledged and lost: {outcome}"
            fates["refused"] += 1
            continue
        assert found == [clients.record(outcome["data"], i) for i in range(5)], outcome
        fates["acknowledged" if outcome["error"] is None else "unknown, and there"] += 1
    return fates


def test_clients_of_a_daemon_in_trouble(tmp_path: Path, chaos: tuple[int, float]) -> None:
    seed, seconds = chaos
    base = tmp_path / "base.ffr"
    with ffrecord.Writer(base) as writer:
        for number in range(clients.RECORDS):
            writer.write(clients.record(0, number))
    stop = tmp_path / "stop"
    roles = ["read"] * READERS + ["publish"] * PUBLISHERS
    journals = [tmp_path / f"{number}.jsonl" for number in range(len(roles))]
    processes: list[subprocess.Popen[bytes]] = []
    with Link() as link, Disk(tmp_path / "disk") as disk:
        for what, why in (("link cuts", link.why_absent), ("full disks", disk.why_absent)):
            if why:
                print(f"without {what}: {why}")
        flags = ("--insecure", "--scrub-days", "1")
        data = disk.folder / "data"
        with Daemon(data, *flags, host=link.host, prefix=link.prefix) as daemon:
            address = daemon.address("base")
            ffrecord.publish(base, address)
            for number, (role, journal) in enumerate(zip(roles, journals, strict=True)):
                journal.touch()
                # One reader beside the daemon, over shared memory; the others over the network.
                query = "?transport=tcp" if number else "?transport=shm"
                arguments = [role, journal, address + query, number + 1, TIMEOUT_S, stop]
                client = [sys.executable, clients.__file__, *map(str, arguments)]
                prefix = [] if number else link.prefix
                processes.append(subprocess.Popen([*prefix, *client]))
            try:
                faults = Chaos(seed, daemon, link, disk).rage(seconds)
            finally:
                stop.touch()
                codes = [process.wait(120) for process in processes]
            outcomes = [line for journal in journals for line in said(journal) if "name" in line]
            fates = check_published(daemon, outcomes)
            assert daemon.stop() == 0
        assert not [line for line in daemon.log if "event=extent_" in line], daemon.log[-20:]

    ends = [said(journal)[-1] for journal in journals[:READERS]]
    print(f"seed {seed}: {dict(faults)}; published {dict(fates)}; readers {ends}")
    assert codes == [0] * len(codes)
    assert not [line for journal in journals for line in said(journal) if "late" in line]
    for end in ends:
        assert end["final"] is None, end
        assert end["good"] > 0, end
    assert fates["acknowledged"] > 0
