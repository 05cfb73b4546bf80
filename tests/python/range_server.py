"""An HTTP server for tests that serves bytes in ranges, and does what it is told to do wrong."""

# ruff: noqa: ANN401 - the standard library's own signatures

import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# What to do with the request of that number for a path: None serves it. Others: an int is a status;
# "cut" ends the body in its middle; "reset" hangs up; "stall" sends half of the body and waits;
# "silent" sends nothing and waits; "whole" answers 200 with the whole file; "shifted" sends another
# range; "untagged" leaves the version out; "dribble" sends byte by byte; "expired" refuses
# credentials as S3 does; "/path" redirects there.
Fault = Callable[[int, str], str | int | None]


class RangeServer:
    """Files by path, and the requests that came for them."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = dict(files)
        self.fault: Fault = lambda number, path: None
        self.delay_s = 0.0
        self.headers: dict[str, str] = {}
        self.seen: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        self.address = ""
        self.stopped = threading.Event()

    def note(self, path: str, asked: str) -> int:
        """Counts the request; numbers begin at 1."""
        with self.lock:
            self.seen.append((path, asked))
            return len(self.seen)

    def url(self, path: str) -> str:
        """The address of a file."""
        return self.address + path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    served: RangeServer

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        served = self.served
        asked = self.headers.get("Range", "")
        path = self.path.split("?")[0]
        fault = served.fault(served.note(path, asked), path)
        if served.delay_s:
            time.sleep(served.delay_s)
        data = served.files.get(path)
        if isinstance(fault, int):
            return self._refuse(fault)
        if fault == "expired":
            return self._refuse(400, body=b"<Error><Code>ExpiredToken</Code></Error>")
        if fault and fault.startswith("/") and fault != path:
            return self._refuse(302, {"Location": fault})
        if fault == "reset":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return None
        if fault == "silent":
            served.stopped.wait()
            self.close_connection = True
            return None
        if data is None:
            return self._refuse(404)
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        if self.headers.get("If-Match", tag) != tag:
            return self._refuse(412)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        begin, end = (int(first), min(int(last) + 1, len(data))) if asked else (0, len(data))
        if asked and begin >= len(data):
            return self._refuse(416, {"Content-Range": f"bytes */{len(data)}"})
        if fault == "shifted":
            begin, end = begin + 1, end + 1
        is_part = bool(asked) and fault != "whole"
        body = data[begin:end] if is_part else data
        self.send_response(206 if is_part else 200)
        if is_part:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        if fault != "untagged":
            self.send_header("ETag", tag)
        for name, value in served.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return self._send(body, fault)

    def _send(self, body: bytes, fault: str | int | None) -> None:
        if fault == "dribble":
            for i in range(len(body)):
                if self.served.stopped.wait(0.1):
                    return
                self.wfile.write(body[i : i + 1])
            return
        if fault not in ("cut", "stall"):
            self.wfile.write(body)
            return
        self.wfile.write(body[: len(body) // 2])
        if fault == "stall":
            self.served.stopped.wait()
        self.close_connection = True

    def _refuse(
        self, status: int, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        self.send_response(status)
        for name, value in {**self.served.headers, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve(files: dict[str, bytes], tls: ssl.SSLContext | None = None) -> Iterator[RangeServer]:
    """Serves the files until the block ends, by HTTPS with `tls`."""
    served = RangeServer(files)
    handler = type("Handler", (_Handler,), {"served": served})

    class Server(ThreadingHTTPServer):
        request_queue_size = 512
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # A client that hangs up is no error.

    server = Server(("127.0.0.1", 0), handler)
    if tls is not None:
        # The handshake is the handler's: a client that makes none holds up no other.
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    served.address = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
