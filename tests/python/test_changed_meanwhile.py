"""Goal: what others publish while a call is under way stays, and is what is opened.

Method: between a client and a daemon stands a relay, which does something after the daemon has
carried a request out, and passes the answer on or loses it.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ffrecord
from daemon import Daemon
from ffrecord.errors import ConflictError

RESOLVE, DELETE, PUBLISH = 0x10, 0x33, 0x35
HEADER_BYTES = 40
REPLY = 0x80


class Relay:
    """Acts once, at the first answer to a request of that type."""

    def __init__(self, daemon: Daemon, request: int, act: Callable[[], None], loses: bool) -> None:
        host, port = daemon.listen.split(":")
        self._to = (host, int(port))
        self._answer: int | None = request + REPLY
        self._act = act
        self._loses = loses
        self._listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def address(self, name: str) -> str:
        """Return the name's address by way of the relay."""
        port = self._listening.getsockname()[1]
        return f"ffrecord://127.0.0.1:{port}/{name}?transport=tcp"

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            server = socket.create_connection(self._to)
            for target, source, to in ((self._ask, client, server), (self._tell, server, client)):
                threading.Thread(target=target, args=(source, to), daemon=True).start()

    @staticmethod
    def _ask(client: socket.socket, server: socket.socket) -> None:
        while got := client.recv(1 << 16):
            server.sendall(got)
        server.shutdown(socket.SHUT_RDWR)

    def _tell(self, server: socket.socket, client: socket.socket) -> None:
        with server.makefile("rb") as answers:
            while header := answers.read(HEADER_BYTES):
                sizes = struct.unpack_from("<2I", header, 16)
                frame = header + answers.read(sum(sizes))
                if header[3] == self._answer:
                    self._answer = None
                    self._act()
                    if self._loses:
                        break
                client.sendall(frame)
        client.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.ffr" for number in range(3)]
    for number, path in enumerate(paths):
        with ffrecord.Writer(path, {"number": "i64"}) as writer:
            writer.write({"number": number})
    return paths


def number_at(address: str) -> int:
    with ffrecord.open(address) as reader:
        return int(reader[0]["number"])


def wait_until_collected(daemon: Daemon, count: int) -> None:
    end = time.monotonic() + 60
    while len(list((daemon.data / "extents").glob("*/*"))) != count:
        assert time.monotonic() < end, "what was replaced is still there"
        time.sleep(0.01)


@pytest.mark.wrong_data
def test_a_removal_that_is_sent_again_leaves_what_was_published_since(
    tmp_path: Path, files: list[Path]
) -> None:
    with Daemon(tmp_path / "data") as daemon:
        address = daemon.address("name")
        ffrecord.publish(files[0], address)
        relay = Relay(daemon, DELETE, lambda: ffrecord.publish(files[1], address), loses=True)
        with pytest.raises(ConflictError, match="may have taken effect"):
            ffrecord.remove_published(relay.address("name"))
        assert number_at(address) == 1


@pytest.mark.wrong_data
@pytest.mark.parametrize("was_there", [False, True])
def test_a_replacement_that_is_sent_again_leaves_what_was_published_since(
    tmp_path: Path, files: list[Path], was_there: bool
) -> None:
    with Daemon(tmp_path / "data") as daemon:
        address = daemon.address("name")
        if was_there:
            ffrecord.publish(files[0], address)

        def others() -> None:
            ffrecord.publish(files[2], address, replace=True)

        relay = Relay(daemon, PUBLISH, others, loses=True)
        with pytest.raises(ConflictError, match="may have taken effect"):
            ffrecord.publish(files[1], relay.address("name"), replace=True)
        assert number_at(address) == 2


@pytest.mark.wrong_data
def test_what_is_replaced_while_it_is_opened_is_opened_as_it_is_now(
    tmp_path: Path, files: list[Path]
) -> None:
    with Daemon(tmp_path / "data") as daemon:
        address = daemon.address("name")
        ffrecord.publish(files[0], address)

        def others() -> None:
            ffrecord.publish(files[1], address, replace=True)
            wait_until_collected(daemon, 1)

        assert number_at(Relay(daemon, RESOLVE, others, loses=False).address("name")) == 1


def test_what_is_removed_while_it_is_opened_is_not_found(tmp_path: Path, files: list[Path]) -> None:
    with Daemon(tmp_path / "data") as daemon:
        address = daemon.address("name")
        ffrecord.publish(files[0], address)

        def others() -> None:
            ffrecord.remove_published(address)
            wait_until_collected(daemon, 0)

        with pytest.raises(FileNotFoundError):
            ffrecord.open(Relay(daemon, RESOLVE, others, loses=False).address("name"))
