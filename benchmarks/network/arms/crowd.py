"""The limits of a daemon, for the benchmark `daemon`: clients, idle connections, extents."""

import concurrent.futures
import os
import pathlib
import re
import resource
import selectors
import socket
import tempfile
import time
import urllib.request

import harness
import peers

CLIENTS = (1, 2, 4, 16, 64)
IDLE_COUNT = 9_900  # The daemon takes 10,000.
DATASETS, FILES = 100, 1_000  # Each has one extent.
PUBLISHERS = 8  # At a time.
START_S_MAX = 60
# HELLO of version 1 without a credential: protocol.md.
HELLO = bytes.fromhex(
    "465201010000000001000000000000001800000000000000000000000c9e734ce291d27117deca0d"
    "010100000000200000008000000000000000000000000000"
)
HELLO_REPLY_BYTES = 80


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Memory of a process that is not of files."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def clients(
    daemon: tuple[pathlib.Path, int, str],
    batch: int,
    record_bytes: int,
    seconds: float,
    rounds: int,
) -> dict[str, list[float]]:
    """Tell what many clients at once get, and what one record of theirs costs the daemon.

    `daemon` is the program that asks it, its process and the location to read. Shares are of the
    best rate that any number of clients reaches, and of what as many clients of a bare exchange
    reach, whose requests and answers have the same sizes. A bare exchange leaves out the disk and
    the page cache, the records' headers, checksums at both ends, limits and metrics. Costs are CPU
    time, of that for one client.
    """
    program, pid, location = daemon
    many, bare = CLIENTS[-1], "bare"
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        rates: dict[int | str, float] = {}
        costs: dict[int | str, float] = {}
        shift = number % (len(CLIENTS) + 1)
        for count in [*CLIENTS, bare, *CLIENTS, bare][shift : shift + len(CLIENTS) + 1]:
            words = ["crowd", location, count, seconds, batch, number]
            if count == bare:
                words = ["exchange-crowd", many, seconds, batch, record_bytes]
            before = cpu_seconds(pid)
            done = harness.run_json(program, *words)
            rates[count] = done["records"] / done["seconds"]
            costs[count] = (cpu_seconds(pid) - before) / done["records"]
        best = max(rates[count] for count in CLIENTS)
        for key, value in {
            **{f"clients_{count}_records_per_s": rates[count] for count in CLIENTS},
            f"clients_{many}_bare_records_per_s": rates[bare],
            f"clients_{many}_vs_best": rates[many] / best,
            f"clients_{many}_vs_bare": rates[many] / rates[bare],
            f"clients_{many}_request_cost": costs[many] / costs[1],
        }.items():
            found.setdefault(key, []).append(value)
    return found


def metric(admin_port: int, name: str, **labels: str) -> float:
    """Ask the daemon's admin port for a metric: the sum over all that have these labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    wanted = "".join(f'(?=.*{key}="(?:{value})")' for key, value in labels.items())
    found = re.findall(rf"^{name}(?:\{{{wanted}[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for value in found)


def wait_until_gone(admin_port: int) -> None:
    """Wait until the daemon has noticed that all have hung up."""
    deadline = time.monotonic() + 20
    while metric(admin_port, "ffrecord_connections") > 0:
        if time.monotonic() > deadline:
            raise harness.Unable("the daemon keeps connections that were closed")
        time.sleep(0.02)


def idle(pid: int, port: int, admin_port: int, rounds: int) -> dict[str, list[float]]:
    """Tell what a connection costs that has greeted and says nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(IDLE_COUNT, hard - 200)
    if count < IDLE_COUNT // 2:
        raise harness.Unable(f"only {hard} descriptors are allowed: raise the limit (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found: dict[str, list[float]] = {"idle_connection_bytes": [], "accepts_per_s": []}
    for _ in range(rounds):
        before = resident_bytes(pid)
        connections: list[socket.socket] = []
        start = time.monotonic()
        try:
            with selectors.DefaultSelector() as selector:
                for index in range(count):
                    connection = socket.create_connection(("127.0.0.1", port))
                    connections.append(connection)
                    connection.sendall(HELLO)
                    selector.register(connection, selectors.EVENT_READ, index)
                greeted = 0
                while greeted < count:
                    ready = selector.select(20)
                    for key, _ in ready:
                        if len(connections[key.data].recv(4096)) != HELLO_REPLY_BYTES:
                            raise harness.Unable("the daemon does not greet an idle connection")
                        selector.unregister(key.fileobj)
                    if not ready:
                        raise harness.Unable("the daemon does not greet all idle connections")
                    greeted += len(ready)
            seconds = time.monotonic() - start
            found["accepts_per_s"].append(count / seconds)
            found["idle_connection_bytes"].append((resident_bytes(pid) - before) / count)
        finally:
            for connection in connections:
                connection.close()
        wait_until_gone(admin_port)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return found


def start(
    settings: harness.Settings, daemon_program: pathlib.Path, rounds: int
) -> dict[str, list[float]]:
    """Tell how long a daemon with 100,000 extents takes from its start to its first answer.

    Its folder lies in memory: what is measured is the daemon, not the disk.
    """
    found = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = pathlib.Path(name)
        port = peers.unused_port()
        words = [daemon_program, "--data", folder / "data", "--listen", f"127.0.0.1:{port}"]
        tiny = folder / "tiny.ffr"
        harness.run_json(harness.program(settings, "read-arm"), "make", tiny, 1, 100, 0.001, 1)
        program = harness.program(settings, "daemon-arm")
        with peers.process(*words, log=folder / "log"):
            peers.wait_for(port)

            def publish(number: int) -> None:
                address = f"ffrecord://127.0.0.1:{port}/many-{number}"
                harness.run_json(program, "publish", tiny, address, FILES)

            # One waits for the daemon at each extent: several keep it busy.
            with concurrent.futures.ThreadPoolExecutor(PUBLISHERS) as pool:
                list(pool.map(publish, range(DATASETS)))
        for _ in range(rounds):
            begin = time.monotonic()
            with peers.process(*words, log=folder / "log"):
                answer = b""
                while not answer:
                    try:
                        with socket.create_connection(("127.0.0.1", port), 20) as connection:
                            connection.sendall(HELLO)
                            answer = connection.recv(HELLO_REPLY_BYTES)
                    except ConnectionRefusedError:
                        if time.monotonic() - begin > START_S_MAX:
                            raise harness.Unable(
                                f"no answer {START_S_MAX} s after a start"
                            ) from None
                        time.sleep(0.002)
                found.append((time.monotonic() - begin) * 1000)
    return {"start_ms": found}
