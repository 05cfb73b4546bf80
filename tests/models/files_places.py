"""A daemon and an object store for the model of files, started when they are first used."""

import atexit
import functools
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import ffrecord

PLACES = ("folder", "daemon", "store")
_ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def daemon() -> str | None:
    """The address of a daemon of this process; None if none is built here."""
    built = Path(os.environ.get("FFRECORD_BUILD_DIR", _ROOT / "build")) / "server" / "ffrecordd"
    program = str(built) if built.exists() else shutil.which("ffrecordd")
    if program is None:
        return None
    data = tempfile.TemporaryDirectory(prefix="model-daemon-")
    process = subprocess.Popen(
        [program, "--data", data.name, "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    atexit.register(_stopped, process, data)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"event=ready listen=(\S+)", line):
            # Else it would stop at a full pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return f"ffrecord://{found[1]}"
    raise AssertionError("the daemon did not start")


def _stopped(process: "subprocess.Popen[str]", data: Any) -> None:  # noqa: ANN401
    process.send_signal(signal.SIGKILL)
    process.wait()
    data.cleanup()


@functools.cache
def store() -> Any:  # noqa: ANN401 - boto3 has no types
    """A client of an S3 store in this process, with a bucket `model`; None without moto."""
    try:
        import boto3
        from moto.server import ThreadedMotoServer
    except ImportError:
        return None
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    atexit.register(server.stop)
    host, port = server.get_host_and_port()
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://{host}:{port}",
        AWS_ACCESS_KEY_ID="testing",
        AWS_SECRET_ACCESS_KEY="testing",
        AWS_REGION="us-east-1",
        no_proxy="*",
    )
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="model")
    return client


def at(place: str, path: Path, name: str) -> str | None:
    """The address of a copy of the file at that place; None where there is no such place here."""
    if place == "file":
        return str(path)
    if place == "folder":
        folder = path.parent / f"folder-{name}"
        folder.mkdir()
        shutil.copy(path, folder / path.name)
        return str(folder)
    if place == "daemon":
        address = daemon()
        if address is None:
            return None
        ffrecord.publish(path, f"{address}/{name}", replace=True)
        return f"{address}/{name}"
    client = store()
    if client is None:
        return None
    client.upload_file(str(path), "model", f"{name}.ffr")
    return f"s3://model/{name}.ffr"
