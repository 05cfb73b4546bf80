"""Transfers between a client and a daemon, whose packets this program reads: test_traffic_marks.py.

Runs in a network namespace of its own. Arguments: a folder, the client's marks as keyword arguments
in JSON, and the daemon's flags in JSON. Prints, in JSON, for each transfer and direction the DSCPs
of the packets that carried most of it.
"""

import json
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import numpy as np

import ffrecord
import ffrecord.runtime
from daemon import Daemon
from ffrecord.torch import DataLoader, Dataset, Sampler

ROWS, ROW_SIZE = 200, 20_000
# Requests and acknowledgements are smaller. Packets within a machine are not cut to 1,500 bytes.
LARGE = 4000
ETHERNET_SIZE = 14
SO_RCVBUFFORCE = 33  # Beyond what the system gives: what is lost is not counted.

Found = dict[str, dict[str, list[int]]]


@contextmanager
def reading(found: Found, what: str, port: int) -> Iterator[None]:
    """Read the large packets that travel to and from a port meanwhile."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    packets.bind(("lo", 0))
    packets.settimeout(0.1)
    dscps: dict[str, Counter[int]] = {"to": Counter(), "from": Counter()}
    over = Event()

    def run() -> None:
        while True:
            try:
                packet, (_, _, kind, *_) = packets.recvfrom(1 << 17)
            except TimeoutError:
                if over.is_set():
                    return
                continue
            # A socket of one protocol sees packets as they arrive.
            if kind == socket.PACKET_HOST and len(packet) >= LARGE:
                header = packet[ETHERNET_SIZE:]
                tcp = header[4 * (header[0] & 15) :]
                to = "to" if int.from_bytes(tcp[2:4], "big") == port else "from"
                dscps[to][header[1] >> 2] += len(packet)

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        packets.close()
        found[what] = {to: sorted(counted) for to, counted in dscps.items()}


def main(folder: Path, marks: dict[str, dict[str, int]], flags: list[str]) -> None:
    """Upload, read, and read ahead."""
    if marks:
        ffrecord.runtime.mark_traffic(**marks)
    values = np.random.default_rng(1).integers(0, 256, (ROWS, ROW_SIZE), np.uint8)
    with ffrecord.Writer(folder / "file.ffr", {"value": f"u8[{ROW_SIZE}]"}) as writer:
        for value in values:
            writer.write({"value": value})
    found: Found = {}
    with Daemon(folder / "served", *flags) as daemon:
        port = int(daemon.listen.rpartition(":")[2])
        address = daemon.address("x?transport=tcp")
        with reading(found, "upload", port):
            ffrecord.publish(folder / "file.ffr", address)
        with reading(found, "read", port), ffrecord.open(address) as reader:
            assert len(reader.read(list(range(ROWS))).records()) == ROWS
        dataset = Dataset(address)
        loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 10), num_workers=2)
        batches = iter(loader)
        next(batches)
        with reading(found, "read_ahead", port):
            for _ in batches:
                Event().wait(0.02)  # The queue is not low: a step of the training.
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]))
