"""Goal: over TLS everything works that works without, for those with a certificate and no others.

Method: certificates made by the openssl command; a real daemon; the package, the commands, and the
refusals that a user will meet.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from cli import ok, run
from daemon import Daemon
from ffrecord._cli.admin import fetch

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command here")

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def issue(authority: Path, folder: Path, *, days: str = "2", names: str = "IP:127.0.0.1") -> Path:
    """A folder as ?tls= wants it: a certificate, its key, and whom to believe."""
    folder.mkdir(exist_ok=True)
    request = ("req", "-x509", *KEY, "-subj", "/CN=test", "-days", days)
    signer = ("-CA", authority / "ca.pem", "-CAkey", authority / "ca-key.pem")
    extensions = ("-addext", f"subjectAltName={names}", "-addext", "basicConstraints=CA:FALSE")
    output = ("-keyout", folder / "key.pem", "-out", folder / "cert.pem")
    openssl(*request, *signer, *extensions, *output)
    (folder / "key.pem").chmod(0o600)
    shutil.copy(authority / "ca.pem", folder / "ca.pem")
    return folder


def make_authority(folder: Path) -> Path:
    folder.mkdir()
    output = ("-keyout", folder / "ca-key.pem", "-out", folder / "ca.pem")
    openssl("req", "-x509", *KEY, "-subj", "/CN=authority", "-days", "2", *output)
    return folder


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_authority(tmp_path_factory.mktemp("tls") / "authority")


def flags_for(folder: Path) -> list[str]:
    files = {"cert": "cert.pem", "key": "key.pem", "ca": "ca.pem"}
    return [word for name, file in files.items() for word in (f"--tls-{name}", str(folder / file))]


@pytest.fixture
def daemon(tmp_path: Path, authority: Path) -> Iterator[Daemon]:
    flags = flags_for(issue(authority, tmp_path / "server"))
    with Daemon(
        tmp_path / "data", *flags, "--transport", "tcp", "--admin", "127.0.0.1:0"
    ) as running:
        yield running


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "train.ffr"
    with ffrecord.Writer(path) as writer:
        for number in range(300):
            writer.write(bytes([number % 256]) * (number * 31))
    return path


def test_a_dataset_is_published_listed_read_and_removed(
    daemon: Daemon, tmp_path: Path, authority: Path, records: Path
) -> None:
    client = issue(authority, tmp_path / "client")
    address = daemon.address(f"train?tls={client}")

    ffrecord.publish(records, address)

    served, local = ffrecord.open(address), ffrecord.open(records)
    order = [*range(299, -1, -1), 5, 5]
    assert bytes(served.read(order).data) == bytes(local.read(order).data)
    assert "train" in ok("ffrecord", "list", daemon.address(f"?tls={client}"))
    findings = json.loads(ok("ffrecord", "doctor", address, "--json"))
    assert findings["transport"] == "tls"
    assert "TLSv1.3" in findings["transport_reason"]
    line = next(line for line in daemon.log if "event=ready" in line)
    assert "transports=tls " in line
    assert "auth=certificates " in line
    admin = next(word[6:] for word in line.split() if word.startswith("admin="))
    told = fetch(f"http://{admin}", 20)
    assert told.get("ffrecord_connections_opened_total", transport="tls") > 0
    assert 86400 < told.get("ffrecord_certificate_expires_timestamp_seconds") - time.time() < 172801
    ffrecord.remove_published(address)
    with pytest.raises(FileNotFoundError):
        len(ffrecord.open(address))


def test_who_may_not_is_told_what_is_wrong_and_what_to_do(
    daemon: Daemon, tmp_path: Path, authority: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(authority / "ca.pem", bare)
    stranger = issue(make_authority(tmp_path / "others"), tmp_path / "stranger")
    shutil.copy(authority / "ca.pem", stranger)
    misled = issue(authority, tmp_path / "misled")
    shutil.copy(tmp_path / "others" / "ca.pem", misled)
    refusals = {
        "": r"\?tls=FOLDER",
        f"?tls={bare}": "requires a certificate",
        f"?tls={stranger}": "is not signed by an authority that the peer trusts",
        f"?tls={misled}": r"is not signed by an authority in .*misled/ca\.pem",
    }
    for query, words in refusals.items():
        with pytest.raises(PermissionError, match=words):
            len(ffrecord.open(daemon.address(f"x{query}"), timeout_s=20))

    good = issue(authority, tmp_path / "client")
    with pytest.raises(PermissionError, match="subjectAltName"):
        port = daemon.listen.split(":")[1]
        len(ffrecord.open(f"ffrecord://localhost:{port}/x?tls={good}"))
    with pytest.raises(FileNotFoundError, match=r"nowhere/ca\.pem"):
        len(ffrecord.open(daemon.address("x?tls=/nowhere")))
    assert run("ffrecord", "doctor", daemon.address("?tls=/nowhere")).returncode != 0


def test_certificates_that_will_not_do_refuse_the_start(tmp_path: Path, authority: Path) -> None:
    folder = issue(authority, tmp_path / "server")
    other = issue(authority, tmp_path / "other")
    flags = flags_for(folder)
    (folder / "key.pem").chmod(0o644)
    wrong = [word.replace("server/key", "other/key") for word in flags]
    missing = [word.replace("server/ca", "none/ca") for word in flags]
    assert other.exists()
    for bad, words in ((flags, "chmod 600"), (wrong, "is not the key"), (missing, "none/ca.pem")):
        refused = Daemon(tmp_path / "data", *bad)
        with pytest.raises(AssertionError, match=words):
            refused.start()
        assert refused.process.wait(30) == 4


def test_doctor_looks_at_certificates(tmp_path: Path) -> None:
    authority, other = (make_authority(tmp_path / name) for name in ("authority", "other"))
    folder = issue(authority, tmp_path / "client", days="9")

    def findings() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ok("ffrecord", "doctor", "--tls", str(folder), "--json"))
        return found

    found = findings()
    left = datetime.fromisoformat(found["certificate_expires"]) - datetime.now(UTC)
    assert timedelta(days=8) < left < timedelta(days=10)
    assert "expires in 8 days" in " ".join(found["advice"])
    (folder / "key.pem").chmod(0o644)
    assert "chmod 600" in " ".join(findings()["advice"])
    shutil.copy(other / "ca.pem", folder / "ca.pem")
    assert "is not signed by an authority" in " ".join(findings()["advice"])
    (folder / "ca.pem").unlink()
    assert "ca.pem" in " ".join(findings()["advice"])
