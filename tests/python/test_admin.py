"""Goal: operators see what a daemon does, in numbers that are right, and nobody else sees it.

Method: the real ffrecordd under known work. Its metrics are read by a parser that takes nothing
that the format does not allow, and by promtool; its page by a browser; alerts and the board may
name only metrics that there are.
"""

import base64
import contextlib
import errno
import http.client
import json
import math
import re
import select
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cli
import ffrecord
from browser import shown
from conftest import ROOT
from daemon import Daemon
from eventually import eventually
from ffrecord import catalogue
from ffrecord._cli.admin import fetch, status
from ffrecord._cli.tokens import read_key

MONITORING = ROOT / "server" / "monitoring"
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
HELP = re.compile(rf"# HELP ({NAME}) (.+)")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge|histogram)")
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse_strictly(text: str) -> Samples:
    """What the exposition format allows, and a little less; see prometheus.io."""
    assert text.endswith("\n")
    samples: Samples = {}
    types: dict[str, str] = {}
    family = ""
    lines = iter(text.splitlines())
    for line in lines:
        if match := HELP.fullmatch(line):
            family = match[1]
            typed = TYPE.fullmatch(next(lines))
            assert typed is not None, line
            assert typed[1] == family, line
            assert family not in types, f"{family} comes twice"
            types[family] = typed[2]
            assert (typed[2] == "counter") == family.endswith("_total"), family
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        name, value = match[1], float(match[3])
        suffix = name.removeprefix(family)
        wanted = ("_bucket", "_sum", "_count") if types[family] == "histogram" else ("",)
        assert suffix in wanted, line
        labels = re.findall(r'(\w+)="([^"]*)"', match[2] or "")
        key = (name, frozenset(labels))
        assert len(dict(labels)) == len(labels), line
        assert key not in samples, line
        assert value >= 0, line
        assert math.isfinite(value), line
        samples[key] = value
    check_histograms(samples, [name for name, kind in types.items() if kind == "histogram"])
    return samples


def check_histograms(samples: Samples, families: list[str]) -> None:
    """Buckets rise to +Inf, which is the count."""
    for family in families:
        series: dict[frozenset[tuple[str, str]], dict[float, float]] = {}
        for (name, labels), value in samples.items():
            if name == f"{family}_bucket":
                bound = float(dict(labels)["le"])
                series.setdefault(labels - {("le", dict(labels)["le"])}, {})[bound] = value
        assert series, family
        for labels, buckets in series.items():
            counts = [buckets[bound] for bound in sorted(buckets)]
            assert counts == sorted(counts)
            assert max(buckets) == math.inf
            assert buckets[math.inf] == samples[f"{family}_count", labels]
            assert (f"{family}_sum", labels) in samples


def get(address: str, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read().decode()
    finally:
        connection.close()


def metrics(address: str) -> dict[str, float]:
    """By name and labels as they would be written, in the order of the labels' names."""
    status, headers, text = get(address, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        name + ("{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels)) + "}" if labels else ""): n
        for (name, labels), n in parse_strictly(text).items()
    }


def metrics_once(address: str, wanted: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """The metrics when they are as wanted."""
    return eventually(lambda: seen if wanted(seen := metrics(address)) else {})


def admin_of(daemon: Daemon) -> str:
    line = next(line for line in daemon.log if "event=ready" in line)
    match = re.search(r" admin=(\S+)", line)
    assert match is not None
    return match[1]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "data", "--admin", "127.0.0.1:0", "--cores", "2") as running:
        yield running


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "train.ffr"
    with ffrecord.Writer(path) as writer:
        for number in range(100):
            writer.write(bytes([number]) * 1000)
    return path


def work(daemon: Daemon, records: Path) -> None:
    """Publish 100 records of 1,000 bytes, read 30 over TCP and 20 over shared memory."""
    ffrecord.publish(records, daemon.address("train"))
    for transport, count in (("tcp", 30), ("shm", 20)):
        with ffrecord.open(daemon.address(f"train?transport={transport}")) as reader:
            assert len(reader.read(list(range(count))).records()) == count


def test_the_metrics_count_what_was_done(daemon: Daemon, records: Path) -> None:
    address = admin_of(daemon)
    before = metrics(address)
    work(daemon, records)
    # The last byte is on its way before it is counted.
    after = metrics_once(
        address,
        lambda seen: (
            seen['ffrecord_request_seconds_count{request="read"}']
            == seen['ffrecord_requests_total{type="batch_read"}']
        ),
    )
    batches = after['ffrecord_requests_total{type="batch_read"}']

    assert before.keys() == after.keys()
    assert before["ffrecord_datasets"] == 0
    assert after["ffrecord_datasets"] == 1
    assert after["ffrecord_extents"] == 1
    # Neighbours are asked for in one piece, and opening reads the index.
    assert 2 <= after['ffrecord_entries_total{status="ok"}'] <= 50
    assert after['ffrecord_entries_total{status="corrupt"}'] == 0
    assert after['ffrecord_read_bytes_total{transport="tcp"}'] >= 30_000
    assert after['ffrecord_read_bytes_total{transport="shm"}'] >= 20_000
    assert after['ffrecord_class_read_bytes_total{class="urgent"}'] >= 50_000
    assert after['ffrecord_class_read_bytes_total{class="prefetch"}'] == 0
    assert after['ffrecord_class_written_bytes_total{class="checkpoint"}'] >= 100_000
    assert after["ffrecord_written_bytes_total"] == after["ffrecord_extent_bytes"] >= 100_000
    assert after['ffrecord_requests_total{type="publish"}'] == 1
    assert batches >= 2
    assert after['ffrecord_connections_opened_total{transport="shm"}'] >= 1
    assert after["ffrecord_disk_free_bytes"] > 0
    assert after['ffrecord_queue_depth{queue="batches"}'] == 0
    for stage in ("queue", "disk", "grant", "network"):
        assert after[f'ffrecord_stage_seconds_count{{request="read",stage="{stage}"}}'] == batches
    for stage in ("queue", "disk", "checksum"):
        assert after[f'ffrecord_stage_seconds_count{{request="write",stage="{stage}"}}'] == 1
    # What took long is not in no stage: together they are the whole.
    parts = sum(
        after[f'ffrecord_stage_seconds_sum{{request="read",stage="{stage}"}}']
        for stage in ("queue", "disk", "grant", "network")
    )
    assert parts == pytest.approx(after['ffrecord_request_seconds_sum{request="read"}'], abs=1e-4)


def test_faults_and_refusals_are_counted(daemon: Daemon) -> None:
    address = admin_of(daemon)
    with pytest.raises(FileNotFoundError):
        len(ffrecord.open(daemon.address("nothing")))
    host, port = daemon.listen.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as hostile:
        hostile.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nnot a frame at all\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert hostile.recv(100) == b""

    # The connection is closed before that is counted.
    after = metrics_once(address, lambda seen: seen["ffrecord_connection_faults_total"] > 0)

    assert after['ffrecord_errors_total{code="not_found"}'] == 1
    assert after["ffrecord_connection_faults_total"] == 1


def test_health_is_told_from_readiness(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", "--admin", "127.0.0.1:0") as daemon:
        address = admin_of(daemon)
        assert get(address, "/healthz")[0] == 200
        assert get(address, "/readyz")[::2] == (200, "ok\n")
        assert daemon.stop() == 0
    with pytest.raises(OSError):
        get(address, "/healthz")


def test_a_port_in_use_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    other = Daemon(tmp_path / "other", "--admin", admin_of(daemon))
    with pytest.raises(AssertionError, match=r"cannot serve the admin port .* in use"):
        other.start()
    other.process.wait(300)


def test_only_questions_are_answered_and_only_by_our_own_name(daemon: Daemon) -> None:
    address = admin_of(daemon)
    port = address.split(":")[1]
    for host in (address, f"localhost:{port}", "127.0.0.1", f"[::1]:{port}"):
        assert get(address, "/metrics", Host=host)[0] == 200, host
    for host in ("evil.example.org", f"evil.example.org:{port}", "127.0.0.1.example.org", "a:b:c"):
        assert get(address, "/metrics", Host=host)[0] == 403, host
    for path in ("/nothing", "/../metrics", "/metrics/", "/" + "x" * 5000):
        assert get(address, path)[0] in (400, 404, 414), path
    for body in (b"x", (bytes(1 << 16) for _ in range(64))):  # With its size, and in chunks.
        connection = http.client.HTTPConnection(address, timeout=60)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", "/metrics", body=body)
            assert connection.getresponse().status == 405
        connection.close()
    # Read no further than 32 KiB, which may break the connection before the answer is read.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        assert get(address, "/metrics", **{f"X-{i}": 100 * "y" for i in range(1000)})[0] == 400
    _, headers, _ = get(address, "/")
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_a_page_is_sent_once_however_many_ranges_of_it_are_asked_for(daemon: Daemon) -> None:
    address = admin_of(daemon)
    _, _, page = get(address, "/")
    for ranges in ("0-0", ",".join(["0-"] * 2000)):
        status, _, body = get(address, "/", Range=f"bytes={ranges}")
        assert status == 200
        assert body == page


def test_slow_clients_hold_up_nobody(daemon: Daemon) -> None:
    address = admin_of(daemon)
    host, port = address.split(":")
    with contextlib.ExitStack() as slow:

        def dribble() -> socket.socket:
            client = slow.enter_context(socket.create_connection((host, int(port)), timeout=60))
            client.sendall(b"GET /metr")
            return client

        def answered_beside() -> socket.socket | None:
            """The newest of many, if it was not gone before others were answered."""
            newest = [dribble() for _ in range(100)][-1]
            for _ in range(20):
                assert get(address, "/healthz")[0] == 200
            return None if select.select([newest], [], [], 0)[0] else newest

        newest = eventually(answered_beside)
        assert newest is not None

        # It is let be for as long as a request may take and no longer.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while not select.select([newest], [], [], 0.1)[0]:
                newest.sendall(b"x")


@pytest.mark.alone("a stop within 1.5 s")
def test_a_stop_waits_for_no_slow_client(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", "--admin", "127.0.0.1:0") as daemon:
        host, port = admin_of(daemon).split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"GET /metr")
            assert get(admin_of(daemon), "/healthz")[0] == 200
            begun = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - begun < 1.5


def test_names_are_told_to_no_stranger(tmp_path: Path, records: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("00" * 32 + "\n")
    keys.chmod(0o600)
    token = tmp_path / "token"
    token.write_text(cli.ok("ffrecord", "token", keys, "--rights", "read,write"))
    flags = ("--admin", "127.0.0.1:0", "--token-keys", str(keys))
    with Daemon(tmp_path / "data", *flags) as daemon:
        ffrecord.publish(records, daemon.address(f"secret?token_file={token}"))
        with pytest.raises(PermissionError):
            len(ffrecord.open(daemon.address("secret")))
        address = admin_of(daemon)
        assert get(address, "/datasets")[0] == 403
        assert "secret" not in get(address, "/metrics")[2] + get(address, "/")[2]
        counted = metrics(address)
        assert counted["ffrecord_tokens_refused_total"] >= 1
        assert counted["ffrecord_datasets"] == 1


def test_with_a_token_only_health_is_told_to_everybody(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    flags = ("--admin", "127.0.0.1:0", "--admin-token-file", str(token), "--quotas", "train/=1M")
    loose = Daemon(tmp_path / "data", *flags)
    with pytest.raises(AssertionError, match="chmod 600"):
        loose.start()
    loose.process.wait(300)
    token.chmod(0o600)
    basic = base64.b64encode(b"anybody:a-token-of-some-length").decode()
    with Daemon(tmp_path / "data", *flags) as daemon:
        address = admin_of(daemon)
        for path in ("/", "/metrics", "/datasets"):
            assert get(address, path)[0] == 401
            assert get(address, path, Authorization="Bearer a-token-of-some-lengtH")[0] == 401
            assert get(address, path, Authorization="Basic !!!!")[0] == 401
            assert get(address, path, Authorization="Bearer a-token-of-some-length")[0] == 200
            assert get(address, path, Authorization=f"Basic {basic}")[0] == 200
        assert "Basic" in get(address, "/")[1]["WWW-Authenticate"]
        assert get(address, "/healthz")[0] == get(address, "/readyz")[0] == 200
        refused = cli.run("ffrecord", "status", address)
        assert refused.returncode == 4
        assert "--token-file" in refused.stderr
        facts = json.loads(cli.ok("ffrecord", "status", address, "--token-file", token, "--json"))
        assert facts["quotas"] == {"train/": "0 B of 1.0 MiB"}
        assert (facts["writes"], facts["bad_extents"]) == ("good", 0)
    assert "a-token-of" not in "".join(daemon.log)


def test_weights_of_tenants_are_shown_with_the_time_they_used(
    tmp_path: Path, records: Path
) -> None:
    keys, token, admin = (tmp_path / name for name in ("keys", "token", "admin"))
    keys.touch(0o600)
    keys.write_text("00" * 32 + "\n")
    rights = ("--rights", "read,write", "--prefix", "train/")
    token.write_text(cli.ok("ffrecord", "token", keys, *rights))
    admin.touch(0o600)
    admin.write_text("a-token-of-some-length\n")
    flags = ("--admin", "127.0.0.1:0", "--admin-token-file", str(admin), "--token-keys", str(keys))
    weights = ("--tenant-weights", "train/=4,runs/=2")
    with Daemon(tmp_path / "data", *flags, *weights) as daemon:
        ffrecord.publish(records, daemon.address(f"train/a?token_file={token}"))
        shown = cli.ok("ffrecord", "status", admin_of(daemon), "--token-file", admin, "--json")
    facts = json.loads(shown)["tenant_weights"]
    assert facts["runs/"] == "2, used 0.0 s"
    assert facts["others"] == "1, used 0.0 s"
    assert facts["train/"].startswith("4, used ")


def test_what_went_bad_on_the_disk_and_a_full_one_are_told(tmp_path: Path, records: Path) -> None:
    flags = ("--admin", "127.0.0.1:0", "--quotas", "train=1M,=2M")
    with Daemon(tmp_path / "data", *flags) as daemon:
        ffrecord.publish(records, daemon.address("train"))
        with pytest.raises(OSError, match=r"more than the quota of 1048576") as refused:
            big = records.with_name("big.ffr")
            with ffrecord.Writer(big) as writer:
                writer.write(bytes(1 << 20))
            ffrecord.publish(big, daemon.address("train/big"))
        assert refused.value.errno == errno.EDQUOT
    with sqlite3.connect(tmp_path / "data" / "metadata.sqlite") as metadata:
        metadata.execute("DELETE FROM entries WHERE key = ?", [b"scrub"])
    metadata.close()
    for extent in (tmp_path / "data" / "extents").glob("*/*"):
        with extent.open("r+b") as file:
            file.seek(500)
            byte = file.read(1)[0]
            file.seek(500)
            file.write(bytes([byte ^ 1]))
    with Daemon(tmp_path / "data", *flags) as daemon:
        address = admin_of(daemon)
        seen = metrics_once(address, lambda now: now["ffrecord_scrub_passes_total"] > 0)
        assert seen["ffrecord_extents_bad"] == 1
        assert seen["ffrecord_scrub_bytes_total"] > 0
        assert json.loads(cli.ok("ffrecord", "status", address, "--json"))["bad_extents"] == 1
        assert get(address, "/readyz")[2] == "ok, damaged extents: 1\n"
    assert any("event=extent_bad" in line for line in daemon.log)
    with Daemon(tmp_path / "data", *flags) as daemon:  # It is not read again this week.
        seen = metrics(admin_of(daemon))
    assert seen["ffrecord_extents_bad"] == 1
    assert seen["ffrecord_scrub_bytes_total"] == 0


def test_promtool_takes_the_metrics_and_the_alerts(daemon: Daemon) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here: apt install prometheus")
    text = get(admin_of(daemon), "/metrics")[2]

    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    rules = subprocess.run(
        [promtool, "check", "rules", MONITORING / "alerts.yml"],
        text=True,
        capture_output=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert rules.returncode == 0, rules.stdout + rules.stderr


def test_page_board_and_alerts_name_only_metrics_that_there_are(daemon: Daemon) -> None:
    known = {re.split(r"[{ ]", name)[0] for name in metrics(admin_of(daemon))}
    families = known | {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}
    # Those of a cluster, which this daemon is not in, have rows in the reference.
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    families |= set(re.findall(r"ffrecord_cluster_[a-z_]+[a-z]", reference))
    board = json.loads((MONITORING / "grafana.json").read_text())
    expressions = " ".join(
        target["expr"] for panel in board["panels"] for target in panel["targets"]
    )
    texts = {
        "grafana.json": expressions,
        "alerts.yml": (MONITORING / "alerts.yml").read_text(),
        "dashboard.html": (MONITORING / "dashboard.html").read_text(),
    }
    for name, text in texts.items():
        used = set(re.findall(r"ffrecord_[a-z_]+[a-z]", text))
        assert len(used) > 5, name
        assert used <= families | {"ffrecord"}, (name, used - families)


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    page = (MONITORING / "dashboard.html").read_text()
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"'\s)>]+)""", page)
    addresses = set(re.findall(r"https?://[^\s\"'`]+", page))
    assert links == ["data:,"]
    # Names of XML, never asked for.
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}
    assert re.findall(r'fetch\("(\w+)"\)', page) == ["cluster", "metrics", "datasets"]


def test_a_browser_shows_what_the_daemon_does(
    daemon: Daemon, records: Path, tmp_path: Path
) -> None:
    work(daemon, records)

    page = shown(f"http://{admin_of(daemon)}/", tmp_path)

    assert re.search(r'id="state" class="state">ready<', page), page[:3000]
    assert "<td>train</td><td>1</td>" in page
    assert re.search(r"<b>1</b><span[^>]*>datasets<", page)
    assert re.search(r'<section id="cluster" class="wide" hidden="">', page)
    for chart in ("throughput", "latency", "stages", "queues"):
        svg = page[page.index(f'id="{chart}"') :]
        assert "<polyline" in svg[: svg.index("</svg>")], chart
    assert re.search(r"<td>shm</td><td>\d+</td><td>[1-9]", page)


def test_a_browser_shows_versions_by_dataset(daemon: Daemon, records: Path, tmp_path: Path) -> None:
    ffrecord.publish(records, daemon.address("plain"))
    for version in ("1.0", "1.1"):
        catalogue.publish(records, daemon.address("team/train"), version)

    page = shown(f"http://{admin_of(daemon)}/", tmp_path)

    assert "<td>team/train</td><td>1.0, 1.1</td>" in page
    assert "<td>plain</td><td>1</td>" in page
    assert ".catalogue" not in page[page.index('id="datasets"') :]


def test_status_and_top_read_the_port(daemon: Daemon, records: Path) -> None:
    address = admin_of(daemon)
    work(daemon, records)

    facts = json.loads(cli.ok("ffrecord", "status", f"http://{address}", "--json"))
    text = cli.ok("ffrecord", "status", address)
    looks = cli.ok("ffrecord", "top", address, "--interval", "0.1", "--count", "2", "--json")

    assert facts["state"] == "ready"
    assert facts["datasets"] == 1
    assert facts["read_bytes"] >= 50_000
    assert facts["errors"].keys() <= {"not_found"}  # Publishing asks whether the name is there.
    assert re.search(r"^state +ready$", text, re.MULTILINE)
    for look in map(json.loads, looks.splitlines()):
        assert look["reads_per_s"] == 0
        assert look["batch_p99_s"] == 0
    assert len(looks.splitlines()) == 2
    assert "a batch" in cli.ok("ffrecord", "top", address, "--interval", "0.1", "--count", "1")


def test_where_no_daemon_answers_status_says_so() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        done = cli.run("ffrecord", "status", f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert done.returncode == 4
    assert "--admin" in done.stderr


INFO = b'ffrecord_build_info{version="1"} 1\n'
HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        HEAD + b"A: " + b"x" * 70_000 + b"\r\n\r\n",
        HEAD + b"a: b\r\n" * 200 + b"\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"\r\n\xff",
        HEAD + b"\r\n" + INFO + b"ffrecord_uptime_seconds 1e\n",
        HEAD + b"\r\n" + INFO + b"ffrecord_uptime_seconds nan\n",
        HEAD + b"\r\n" + INFO + b"ffrecord_disk_free_bytes inf\n",
        HEAD + b"\r\n" + INFO + b'ffrecord_request_seconds_bucket{le="x",request="read"} 1\n',
        HEAD + b"\r\nsomething_else 1\n",
    ],
)
def test_what_is_no_admin_port_is_said_to_be_none(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConnectionError, match=r"(no admin port answers|is not ffrecordd)"):
            status(fetch(f"127.0.0.1:{server.getsockname()[1]}", 10.0))
        thread.join()


def test_addresses_and_tokens_that_cannot_be_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="no admin port answers at http://a b/"):
        fetch("http://a b/", 1.0)
    for content in (b"", b"\n", b"\xff\n", b"two words\n"):
        (tmp_path / "token").write_bytes(content)
        with pytest.raises(ValueError, match="token holds no token"):
            fetch("127.0.0.1:1", 1.0, str(tmp_path / "token"))
    with pytest.raises(FileNotFoundError):
        fetch("127.0.0.1:1", 1.0, str(tmp_path / "none"))
    (tmp_path / "keys").write_bytes(b"\xff")
    (tmp_path / "keys").chmod(0o600)
    with pytest.raises(ValueError, match="keys holds no key"):
        read_key(tmp_path / "keys")
