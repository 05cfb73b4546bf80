"""Programs of others that the benchmark `daemon` compares with, and how they are run and asked."""

import contextlib
import os
import pathlib
import random
import socket
import subprocess
import time
from collections.abc import Iterator

import harness


def unused_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(*command: object, log: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block is left."""
    with log.open("wb") as output:
        running = subprocess.Popen(
            [str(word) for word in command], stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        try:
            yield running
        finally:
            running.terminate()
            running.wait(20)


def wait_for(port: int) -> None:
    """Wait until somebody listens there."""
    for _ in range(400):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise harness.Unable(f"nothing listens on port {port} after 20 s")


def connect(port: int) -> socket.socket:
    """Connect to a server that answers at once."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket, place: memoryview) -> None:
    """Fill `place` from a connection."""
    while place:
        got = connection.recv_into(place)
        if got == 0:
            raise harness.Unable("a server has closed the connection")
        place = place[got:]


# --- iperf3 --------------------------------------------------------------------------------------


def iperf_server(port: int, folder: pathlib.Path) -> contextlib.AbstractContextManager[object]:
    """Run iperf3's server."""
    words = [harness.foreign("iperf3", "iperf3"), "-s", "-B", "127.0.0.1", "-p", port]
    return process(*words, log=folder / "iperf.log")


def iperf(port: int, seconds: int, record_bytes: int, cost: list[float]) -> harness.Arm:
    """Make the arm of iperf3: records of `record_bytes` per second in one stream."""
    program = harness.foreign("iperf3", "iperf3")

    def run(_: int) -> float:
        done = harness.run_json(
            program, "-c", "127.0.0.1", "-p", port, "-t", seconds, "-J", "--length", "128K"
        )["end"]
        received = done["sum_received"]
        cpu = done["cpu_utilization_percent"]
        used = (cpu["host_total"] + cpu["remote_total"]) / 100 * received["seconds"]
        cost.append(used / (received["bytes"] / 1e9))
        return float(received["bytes"] / received["seconds"] / record_bytes)

    return harness.Arm("iperf3", "iperf3, one stream, as records of 110 KB", run)


# --- redis ---------------------------------------------------------------------------------------


def redis_server(port: int, folder: pathlib.Path) -> contextlib.AbstractContextManager[object]:
    """Run redis in memory only."""
    return process(
        harness.foreign("redis-server", "redis-server"),
        *("--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
        *("--dir", folder),
        log=folder / "redis.log",
    )


def redis(port: int, batches: int, batch: int, size: int) -> harness.Arm:
    """Make the arm of redis: MGET of values; replies are received, not looked into."""
    keys = 20_000
    value = os.urandom(size)
    # *256, then each value as $4096, the bytes, and an end of line.
    reply = len(b"*%d\r\n" % batch) + batch * (len(b"$%d\r\n\r\n" % size) + size)

    def bulk(words: list[bytes]) -> bytes:
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)

    with connect(port) as connection:
        for key in range(keys):
            connection.sendall(bulk([b"SET", b"%d" % key, value]))
            receive(connection, memoryview(bytearray(5)))

    def run(number: int) -> float:
        source = random.Random(number)
        requests = [
            bulk([b"MGET", *(b"%d" % source.randrange(keys) for _ in range(batch))])
            for _ in range(batches)
        ]
        buffer = memoryview(bytearray(reply))
        with connect(port) as connection:
            start = time.monotonic()
            for request in requests:
                connection.sendall(request)
                receive(connection, buffer)
            seconds = time.monotonic() - start
        return batches * batch / seconds

    return harness.Arm("redis_4k", "redis, MGET of 256 values of 4 KiB", run)


# --- nginx ---------------------------------------------------------------------------------------


def nginx_server(
    port: int, file: pathlib.Path, folder: pathlib.Path
) -> contextlib.AbstractContextManager[object]:
    """Run nginx over the folder of `file`."""
    settings = folder / "nginx.conf"
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    settings.write_text(
        f"{'user root;' if os.geteuid() == 0 else ''} daemon off; pid {folder}/nginx.pid;"
        f" worker_processes auto; error_log {folder}/nginx.error; events {{ }} http {{ {temporary}"
        f" access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000;"
        f" large_client_header_buffers 4 32k; open_file_cache max=16;"
        f" server {{ listen 127.0.0.1:{port}; root {file.parent}; }} }}"
    )
    words = [harness.foreign("nginx", "nginx-light"), "-c", settings, "-e", folder / "nginx.error"]
    return process(*words, log=folder / "nginx.log")


def nginx(port: int, file: pathlib.Path, batches: int, batch: int, size: int) -> harness.Arm:
    """Make the arm of nginx: one request of many ranges; replies are received, not looked into."""
    pieces = file.stat().st_size // size

    def run(number: int) -> float:
        source = random.Random(number)
        requests = []
        for _ in range(batches):
            starts = (source.randrange(pieces) * size for _ in range(batch))
            ranges = ",".join(f"{start}-{start + size - 1}" for start in starts)
            requests.append(
                f"GET /{file.name} HTTP/1.1\r\nHost: x\r\nRange: bytes={ranges}\r\n\r\n".encode()
            )
        buffer = bytearray(batch * (size + 1024))
        with connect(port) as connection:
            start = time.monotonic()
            for request in requests:
                connection.sendall(request)
                done = connection.recv_into(buffer)
                end = buffer.find(b"\r\n\r\n", 0, done) + 4
                head = bytes(buffer[:end]).lower()
                if end < 4 or b" 206 " not in head:
                    raise harness.Unable(f"nginx answers {bytes(buffer[:80])!r}")
                total = end + int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                receive(connection, memoryview(buffer)[done:total])
            seconds = time.monotonic() - start
        return batches * batch / seconds

    return harness.Arm("nginx_4k", "nginx, one request of 256 ranges of 4 KiB", run)
