"""Use an installed wheel as its users do; run by tests/wheel/run in a root without our libraries.

smoke.py FOLDER [seccomp | enosys | libcurl | sealed]

Packs and reads record files, loads them without torch, starts `ffrecordd`, publishes to it, reads
by TCP and by shared memory, saves and loads a checkpoint, and asks `ffrecord doctor`.

| word | then |
|---|---|
| `seccomp` | the calls are refused that Docker's default profile refuses, io_uring's among them |
| `enosys` | the kernel does not know io_uring |
| `libcurl` | libcurl is there: files are read by HTTPS |
| `sealed` | FOLDER is left from a run without it, and no file can be written any more |
"""

import ctypes
import errno
import json
import os
import pathlib
import re
import signal
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import range_server  # Beside this file.

# Of x86-64: io_uring, memory policies, userfaultfd, keys, namespaces, mounts, bpf, perf, handles.
IO_URING = (425, 426, 427)
REFUSED = (*IO_URING, 237, 238, 239, 256, 279, 323, 248, 249, 250, 272, 308, 165, 321, 298, 304)
BIN = pathlib.Path(sys.executable).parent
RECORDS = 500


def refuse_calls(refused: tuple[int, ...], error: int) -> None:
    """Refuse those calls to this process and to all that it starts."""
    load, equal, give = 0x20, 0x15, 0x06
    program = [(load, 0, 0, 0)]  # The number of the call.
    for left, number in zip(range(len(refused) - 1, -1, -1), refused, strict=True):
        program.append((equal, left + 1, 0, number))
    program += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | error)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    filter_ = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter_, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter of system calls")


def command(*words: str | pathlib.Path) -> str:
    """The output of a command of the wheel, which has to succeed."""
    done = subprocess.run(
        [str(BIN / words[0]), *map(str, words[1:])], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def daemon(folder: pathlib.Path) -> Iterator[int]:
    """Run `ffrecordd`; give its port."""
    log = (folder / "ffrecordd.log").open("w+")
    with subprocess.Popen(
        [BIN / "ffrecordd", "--data", folder / "data", "--listen", "127.0.0.1:0"],
        stdout=log,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            yield port_of(process, folder / "ffrecordd.log")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, (folder / "ffrecordd.log").read_text()
        finally:
            process.kill()


def port_of(process: subprocess.Popen[bytes], log: pathlib.Path) -> int:
    """Wait until it says where it listens."""
    for _ in range(600):
        if found := re.search(r"127\.0\.0\.1:(\d+)", log.read_text()):
            return int(found[1])
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    raise RuntimeError(f"ffrecordd did not start:\n{log.read_text()}")


def contents() -> list[bytes]:
    """What records hold, in each run the same."""
    random = np.random.default_rng(5)
    return [random.bytes(int(n)) for n in random.integers(1, 5000, RECORDS)]


def pack(ffrecord: object, path: pathlib.Path) -> list[bytes]:
    """Write records; return what they hold."""
    wanted = contents()
    with ffrecord.Writer(path) as writer:  # type: ignore[attr-defined]
        for record in wanted:
            writer.write(record)
    return wanted


def compare(reader: object, wanted: list[bytes]) -> None:
    """Read all, in disorder."""
    order = np.random.default_rng(7).permutation(len(wanted))
    batch = reader.read(order)  # type: ignore[attr-defined]
    for at, i in enumerate(order):
        assert bytes(batch[at]) == wanted[i], i


def check_daemon(ffrecord: object, file: pathlib.Path, wanted: list[bytes], port: int) -> None:
    """Publish, read by both ways, and keep a checkpoint there."""
    import ffrecord.checkpoint as ckpt

    address = f"ffrecord://127.0.0.1:{port}"
    command("ffrecord", "publish", file, f"{address}/train")
    for way in ("tcp", "shm"):
        with ffrecord.open(f"{address}/train?transport={way}") as reader:  # type: ignore[attr-defined]
            compare(reader, wanted)
        shown = json.loads(command("ffrecord", "doctor", f"{address}?transport={way}", "--json"))
        assert shown["transport"].startswith(way), shown
    check_checkpoint(ckpt, f"{address}/runs/x")


def check_checkpoint(ckpt: object, target: str) -> None:
    """Save and load arrays."""
    state = {"w": np.arange(70000.0).reshape(70, 1000), "step": 3}
    ckpt.save(target, 3, state)  # type: ignore[attr-defined]
    empty = {"w": np.zeros((70, 1000)), "step": 0}
    loaded = ckpt.load(target, empty)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(empty["w"], state["w"])
    assert loaded is not None


def check_https(ffrecord: object, file: pathlib.Path, wanted: list[bytes]) -> None:
    """Read a file by HTTPS, whose certificate is trusted only where it is named."""
    key, certificate = file.with_name("key.pem"), file.with_name("certificate.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with range_server.serve({"/a.ffr": file.read_bytes()}, tls=context) as served:
        show = f"import ffrecord; print(len(ffrecord.open({served.url('/a.ffr')!r}, timeout_s=5)))"
        stranger = subprocess.run(
            [sys.executable, "-c", show], capture_output=True, text=True, timeout=60
        )
        assert stranger.returncode != 0 and "certificate" in stranger.stderr, stranger
        for stronger in ("AWS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            os.environ.pop(stronger, None)
        os.environ["SSL_CERT_FILE"] = str(certificate)
        with ffrecord.open(served.url("/a.ffr")) as reader:  # type: ignore[attr-defined]
            compare(reader, wanted)


def check_no_store(ffrecord: object) -> None:
    """The error without libcurl says which package has it."""
    try:
        len(ffrecord.open("s3://bucket/a.ffr"))  # type: ignore[attr-defined]
    except OSError as error:
        assert "libcurl4" in str(error), error
    else:
        raise AssertionError("an object store without libcurl")


def check_doctor(words: list[str]) -> None:
    """Every feature that the wheel carries is there; others name their remedy."""
    found = json.loads(command("ffrecord", "doctor", "--json"))
    features = found["features"]
    assert not features["TLS"] and not features["JPEG decoder"] and not features["daemon"], features
    # Of the root, which has no library, or of a machine without a device.
    assert re.search("install|load the module", features["RDMA"]), features
    assert ("install" in features["object stores"]) == ("libcurl" not in words), features
    assert "pip install torch" in features["PyTorch loader"], features
    if "seccomp" in words or "enosys" in words:
        assert found["io_engine"] == "threads", found
        assert features["io_uring"], features
        assert "seccomp" in " ".join(found["advice"]), found


def check_sealed(ffrecord: object, ckpt: object, folder: pathlib.Path) -> None:
    """Reads go on where nothing can be written, and writers say why they cannot."""
    file = folder / "a.ffr"
    with ffrecord.open(file) as reader:  # type: ignore[attr-defined]
        compare(reader, contents())
    for words in (["verify"], ["inspect"], ["head"], ["stats"], ["doctor", "--seconds", "0.3"]):
        command("ffrecord", words[0], file, *words[1:])
    empty = {"w": np.zeros((70, 1000)), "step": 0}
    assert ckpt.load(str(folder / "runs"), empty) is not None  # type: ignore[attr-defined]
    assert empty["w"].sum() > 0
    for words in (
        ["ffrecord", "repair", file, folder / "b.ffr"],
        ["ffrecord", "shuffle", file, folder / "b.ffr", "--seed", "1"],
        ["ffrecord", "doctor", folder, "--write"],
        ["ffrecordd", "--data", folder / "new", "--listen", "127.0.0.1:0"],
    ):
        program = [BIN / words[0], *words[1:]]
        done = subprocess.run(program, capture_output=True, text=True, timeout=60)
        said = done.stdout + done.stderr
        assert done.returncode == 4 and "read-only" in said.lower(), (words, done)
        assert "Traceback" not in said and "; choose a" in said, said
    try:
        ckpt.save(str(folder / "runs"), 4, empty)  # type: ignore[attr-defined]
    except OSError as error:
        assert error.errno == errno.EROFS, error
    else:
        raise AssertionError("a checkpoint was written to a file system that is read-only")


def main() -> None:
    """Do all of it; an exception says what does not work."""
    folder = pathlib.Path(sys.argv[1])
    words = sys.argv[2:]
    if "seccomp" in words:
        refuse_calls(REFUSED, errno.EPERM)
    if "enosys" in words:
        refuse_calls(IO_URING, errno.ENOSYS)
    import ffrecord
    import ffrecord.checkpoint as ckpt

    assert "torch" not in sys.modules
    if "sealed" in words:
        check_sealed(ffrecord, ckpt, folder)
        print(f"uid {os.getuid()}: reads need nothing to write to")
        return
    file = folder / "a.ffr"
    wanted = pack(ffrecord, file)
    with ffrecord.open(file) as reader:
        compare(reader, wanted)
    command("ffrecord", "verify", file)
    check_doctor(words)
    check_checkpoint(ckpt, str(folder / "runs"))
    if "libcurl" in words:
        check_https(ffrecord, file, wanted)
    else:
        check_no_store(ffrecord)
    with daemon(folder) as port:
        check_daemon(ffrecord, file, wanted, port)
    print(f"uid {os.getuid()}: all of the wheel works")


main()
