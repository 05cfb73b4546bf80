"""Goal: a client that fails again and again does not fill the log.

Method: a real daemon, and connections that send what is no frame.
"""

import socket
from pathlib import Path

from daemon import Daemon

FAULT_COUNT = 300
LINES_MAX = 10  # Of each worker, in ten seconds.


def send_garbage(listen: str) -> None:
    """Return when the daemon has closed the connection."""
    host, port = listen.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        try:
            while client.recv(4096):
                pass
        except ConnectionResetError:
            pass


def test_faults_of_connections_do_not_fill_the_log(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", "--cores", "1") as daemon:
        for _ in range(FAULT_COUNT):
            send_garbage(daemon.listen)
    closed = [line for line in daemon.log if "event=connection_closed " in line]
    # More only if it all takes longer than ten seconds.
    assert LINES_MAX <= len(closed) < FAULT_COUNT / 2
