"""Many ranks that burst to one daemon, whose link is the bottleneck: goodput and fairness.

Goodput is what all ranks transfer, over the time until the last has ended, as a share of the
link's rate. Jain's index is that of the ranks' rates: 1 if all are equal, 1/n if one has all.
"""

import pathlib
import sys
import tempfile
import time

import harness
from contended import NETWORKS, STORE, WIDE_MBIT, contended, daemon
from rank_group import Group

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "rank" / "bursting.py"
RANKS, QUICK_RANKS = 16, 4
SIZE_BYTES, QUICK_SIZE_BYTES = 16 << 20, 2 << 20
# The ranks prepare their bursts meanwhile.
_PREPARING_S = 1.0


def figures(settings: harness.Settings, mbit: int) -> dict[str, list[float]]:
    """Goodput and Jain's index of uploads and reads, by round.

    Raises:
        harness.Unable: a rank was not ready in time, or there are no namespaces.
    """
    ranks = QUICK_RANKS if settings.quick else RANKS
    size_bytes = QUICK_SIZE_BYTES if settings.quick else SIZE_BYTES
    found: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(dir=settings.scratch) as folder,
        contended(ranks, WIDE_MBIT, "ffi") as links,
        daemon(settings, links, pathlib.Path(folder)) as port,
    ):
        store = f"ffrecord://{NETWORKS[0]}.{STORE}:{port}"
        prefixes = [["ip", "netns", "exec", name] for name in links.ranks]
        links.limit_store(mbit)
        _publish(settings, prefixes[0], store, ranks * size_bytes)
        group = Group(links.hosts(), prefixes, "eth0", (), PROGRAM)
        try:
            for number in range(1, settings.rounds + 2):
                for what in ("uploads", "reads"):
                    order = {"what": what, "store": store, "size_bytes": size_bytes}
                    order |= {"number": number, "begins_at": time.monotonic() + _PREPARING_S}
                    answers = group.order(order)
                    if max(each["late_s"] for each in answers) > _PREPARING_S / 4:
                        raise harness.Unable("a rank was late: this machine is too busy")
                    if number == 1:
                        continue  # Connections, and slow start.
                    rates = [size_bytes / each["took_s"] for each in answers]
                    slowest_s = max(each["took_s"] for each in answers)
                    goodput = ranks * size_bytes / slowest_s / (mbit * 125_000)
                    jain = sum(rates) ** 2 / (ranks * sum(rate**2 for rate in rates))
                    found.setdefault(f"incast_goodput_{what}", []).append(goodput)
                    found.setdefault(f"incast_jain_{what}", []).append(jain)
        finally:
            group.close()
    return found


def _publish(settings: harness.Settings, prefix: list[str], store: str, size_bytes: int) -> None:
    """Publish random records, which then are in the daemon's memory."""
    with tempfile.TemporaryDirectory(dir=settings.scratch) as folder:
        program = (
            "import os, sys; import ffrecord; from pathlib import Path\n"
            "file = Path(sys.argv[1], 'records.ffr')\n"
            "with ffrecord.Writer(file) as writer:\n"
            "    for _ in range(int(sys.argv[3]) // 65536): writer.write(os.urandom(65536))\n"
            "ffrecord.publish(file, sys.argv[2] + '/records'); print('{}')\n"
        )
        command = [*prefix, sys.executable, "-c", program, folder, store, str(size_bytes)]
        harness.run_json(*command)
