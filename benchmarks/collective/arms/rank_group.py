"""Ranks of ours and of Gloo: processes that stay, and reduce on command."""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

import harness

RANK = pathlib.Path(__file__).resolve().parents[1] / "rank" / "rank.py"
PORT = 29_400


class Group:
    """Processes as ranks, which run the commands that they receive."""

    def __init__(
        self,
        hosts: list[str],
        prefixes: list[list[str]],
        interface: str,
        arms: tuple[str, ...] = ("ours", "ours f16"),
        program: pathlib.Path = RANK,
    ) -> None:
        """Start them, each behind its command prefix; `arms` are further arguments of theirs."""
        environment = os.environ | {
            "MASTER_ADDR": hosts[0],
            "MASTER_PORT": str(PORT),
            "WORLD_SIZE": str(len(hosts)),
            "GLOO_SOCKET_IFNAME": interface,
            "OMP_NUM_THREADS": "1",
        }
        self.ranks = [
            subprocess.Popen(
                [*prefix, sys.executable, str(program), host, *arms],
                env=environment | {"RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, (host, prefix) in enumerate(zip(hosts, prefixes, strict=True))
        ]

    def reduce(
        self,
        arm: str,
        sizes_bytes: list[int],
        repeats: int,
        computing_s: list[float],
        setting: dict[str, Any] | None = None,
    ) -> dict[str, float]:
        """Seconds of all-reducing these arrays, and processor seconds of all ranks for it."""
        order = {
            "arm": arm,
            "sizes_bytes": sizes_bytes,
            "repeats": repeats,
            "computing_s": computing_s,
            "setting": setting,
        }
        found = self.order(order)
        if len({each["digest"] for each in found}) != 1:
            raise harness.Unable(f"the ranks' results differ: {order}")
        slowest = [max(each["seconds"][i] for each in found) for i in range(repeats)]
        return {
            "seconds": statistics.median(slowest),
            "cpu_seconds": sum(each["cpu_seconds"] for each in found) / repeats,
        }

    def order(self, what: dict[str, Any]) -> list[dict[str, Any]]:
        """The answers of all ranks."""
        order = json.dumps(what)
        for rank in self.ranks:
            assert rank.stdin is not None
            print(order, file=rank.stdin, flush=True)
        found: list[dict[str, Any]] = []
        for rank in self.ranks:
            assert rank.stdout is not None
            line = rank.stdout.readline()
            if not line:
                raise harness.Unable(f"a rank has ended during {order}; its message stands above")
            found.append(json.loads(line))
        return found

    def close(self) -> None:
        """End the ranks."""
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in self.ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(10)
            rank.kill()
            rank.wait()
