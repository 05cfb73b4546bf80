"""An S3-compatible store for tests: moto's, in this process, behind a door where faults wait."""

# ruff: noqa: ANN401 - what WSGI hands over has no better type

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import ffrecord.checkpoint as ckpt

# What to do with a request: "serve", "503", "403", "404", "hang up", "lose" its answer after it was
# served, or "say ..." to answer 200 with that text; told its number, method and path.
Door = Callable[[int, str, str], str]


_REFUSALS = {"503": "503 Slow Down", "403": "403 Forbidden", "404": "404 Not Found"}


class Store:
    """Requests are counted from 1 since `door` was last set; they may come on many threads."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.lock = threading.Lock()
        self.serve_all()

    def serve_all(self) -> None:
        """No faults from here on."""
        self.set_door(lambda number, method, path: "serve")

    def set_door(
        self, door: Door, after: Callable[[int, str], None] = lambda number, request: None
    ) -> None:
        """Asks `door` before each request, and tells `after` which one has been served."""
        with self.lock:
            self.door, self.after = door, after
            self.seen: list[str] = []
            self.taken_bytes = 0  # Of requests.
            self.sent: list[tuple[str, int]] = []  # Requests and the bytes that answered them.

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Serves one request, as WSGI has it."""
        method = environ["REQUEST_METHOD"]
        path = environ["PATH_INFO"] + ("?" + environ["QUERY_STRING"]).rstrip("?")
        with self.lock:
            request = f"{method} {path}"
            self.seen.append(request)
            self.taken_bytes += int(environ.get("CONTENT_LENGTH") or 0)
            number, door, after = len(self.seen), self.door, self.after
        verdict = door(number, method, path)
        if verdict in _REFUSALS:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(_REFUSALS[verdict], [("Content-Length", "0")])
            return [b""]
        if verdict == "hang up":
            return hang_up(environ, start_response)
        if verdict.startswith("say "):
            text = verdict.removeprefix("say ").encode()
            start_response("200 OK", [("Content-Length", str(len(text)))])
            return [text]
        answer = list(self.app(environ, start_response))
        with self.lock:
            self.sent.append((request, sum(map(len, answer))))
        after(number, request)
        if verdict == "lose":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer


def hang_up(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    start_response("500 Nobody hears this", [("Content-Length", "0")])
    return [b""]


def skip_without_stores() -> None:
    """Skips if this build has none."""
    try:
        ckpt.list("s3://bucket/any")
    except ValueError as error:
        pytest.skip(str(error))


def serve() -> Iterator[Store]:
    """A store with a bucket called `bucket`, and the AWS variables that lead to it."""
    pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[s3,server]'")
    import boto3
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # Connections stay open.

        def log(self, kind: str, message: str, *arguments: object) -> None:
            pass

    store = Store(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, store, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("no_proxy", "*")
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_REGION", "us-east-1")
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        skip_without_stores()
        yield store
    server.shutdown()
    thread.join()
    server.server_close()
