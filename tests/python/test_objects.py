"""Goal: objects at a store and files of an HTTP server read like local files, whatever goes wrong.

Method: the same files read from disk, from moto's S3 and from a small server of ranges, which
throttles, cuts off, stalls, lies and replaces files while they are read.
"""

# ruff: noqa: ANN401 - a location is text or a list of it

import multiprocessing
import os
import pickle
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from ffrecord import ConflictError, CorruptionError, DeadlineExceeded, UnavailableError
from object_store import Store, serve
from range_server import RangeServer
from range_server import serve as serve_ranges

COUNT = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files with records of 900 to 40,000 bytes, keys and a column."""
    folder = tmp_path_factory.mktemp("objects")
    chance = np.random.default_rng(5)
    for number in range(3):
        with ffrecord.Writer(
            folder / f"part-{number}.ffr", schema={"label": "i64", "data": "bytes"}, key=True
        ) as writer:
            for i in range(COUNT // 3):
                label = number * COUNT // 3 + i
                data = chance.bytes(int(chance.integers(900, 40_000)))
                writer.write({"label": label, "data": data}, key=f"key-{label}")
    return folder


@pytest.fixture(scope="module")
def local(folder: Path) -> ffrecord.Reader:
    """The files on disk."""
    return ffrecord.open(folder)


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    """A bucket with the files in `train/`."""
    import boto3

    for store in serve():
        client = boto3.client("s3", region_name="us-east-1")
        for path in sorted(folder.iterdir()):
            client.upload_file(str(path), "bucket", f"train/{path.name}")
        client.put_object(Bucket="bucket", Key="train/notes.txt", Body=b"no records")
        client.put_object(Bucket="bucket", Key="train/deeper/part-9.ffr", Body=b"")
        yield store


@pytest.fixture
def served(folder: Path) -> Iterator[RangeServer]:
    """The files at an HTTP server."""
    try:
        len(ffrecord.open("http://127.0.0.1:1/x.ffr", timeout_s=0.1))
    except ValueError as error:
        pytest.skip(str(error))  # A build without stores.
    except UnavailableError:
        pass
    files = {f"/train/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with serve_ranges(files) as served:
        yield served


def addresses(served: RangeServer) -> list[str]:
    """Of all files."""
    return [served.url(path) for path in sorted(served.files)]


def assert_same(reader: ffrecord.Reader, local: ffrecord.Reader) -> None:
    assert len(reader) == len(local)
    assert reader.fingerprint == local.fingerprint
    wanted = np.random.default_rng(7).permutation(len(local))
    ours, theirs = reader.read(wanted), local.read(wanted)
    assert all(bytes(a["data"]) == bytes(b["data"]) for a, b in zip(ours, theirs, strict=True))
    np.testing.assert_array_equal(reader.column("label"), local.column("label"))
    assert reader.find("key-123") == local.find("key-123")


# --- What an address stands for ------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        "s3://bucket/train/",
        "s3://bucket/train",
        "s3://bucket/train/part-*.ffr",
        "s3://bucket/tr*/part-[0-2].ffr",
        [f"s3://bucket/train/part-{number}.ffr" for number in range(3)],
    ],
)
def test_objects_read_like_files(store: Store, local: ffrecord.Reader, where: Any) -> None:
    assert_same(ffrecord.open(where), local)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("s3://bucket/none.ffr", FileNotFoundError),
        ("s3://bucket/none", FileNotFoundError),
        ("s3://bucket/x*", FileNotFoundError),
        ("s3://nobody/x.ffr", FileNotFoundError),
        ("s3://", ValueError),
        ("s3:///x", ValueError),
        ("s3://bucket/train/notes.txt", CorruptionError),
        (["s3://bucket/train/part-0.ffr", "/tmp/x.ffr"], ValueError),
        ("gs://bucket/x.ffr", ValueError),
    ],
)
def test_what_is_not_there_is_named(store: Store, where: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"bucket|S3|s3|address"):
        len(ffrecord.open(where))


def test_a_bucket_that_throttles_and_hangs_up_is_asked_again(
    store: Store, local: ffrecord.Reader
) -> None:
    faults = {2: "503", 3: "503", 5: "hang up", 8: "503", 11: "lose", 12: "hang up"}
    store.set_door(lambda number, method, path: faults.get(number, "serve"))
    assert_same(ffrecord.open("s3://bucket/train/"), local)
    store.serve_all()


def test_files_of_an_http_server_read_like_local_ones(
    served: RangeServer, local: ffrecord.Reader
) -> None:
    assert_same(ffrecord.open(addresses(served)), local)


def test_neighbours_are_read_together(served: RangeServer) -> None:
    reader = ffrecord.open(addresses(served))
    len(reader)
    reader.read(range(COUNT))
    before = len(served.seen)
    reader.read(range(COUNT))
    assert len(served.seen) - before <= 6


def test_a_loader_reads_a_store_and_resumes(store: Store, local: ffrecord.Reader) -> None:
    pytest.importorskip("torch")
    from ffrecord.torch import DataLoader, Dataset, Sampler

    def labels(where: Any, state: dict[str, Any] | None, stop: int | None, mode: str) -> Any:
        dataset = Dataset(where, transform=lambda sample: sample["label"])
        sampler = Sampler(dataset, global_batch=32, seed=3, rank=0, world_size=1)
        loader: Any = DataLoader(dataset, batch_sampler=sampler, mode=mode, num_workers=2)
        if state is not None:
            loader.load_state_dict(state)
        seen = []
        for batch in loader:
            seen.append(list(map(int, batch)))
            if len(seen) == stop:
                return seen, loader.state_dict()
        return seen, None

    wanted, _ = labels(local.where, None, None, "threads")
    for mode in ("threads", "workers"):
        first, state = labels("s3://bucket/train/", None, 4, mode)
        rest, _ = labels("s3://bucket/train/", state, None, mode)
        assert first + rest == wanted


# --- Faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [500, 502, 503, 429, 408, "cut", "reset"])
def test_a_fault_that_passes_costs_time_alone(
    served: RangeServer, local: ffrecord.Reader, fault: str | int
) -> None:
    served.fault = lambda number, path: fault if number % 3 == 1 else None
    assert_same(ffrecord.open(addresses(served)), local)


@pytest.mark.parametrize("fault", ["stall", "silent", "dribble"])
def test_an_answer_that_is_late_is_asked_for_again(
    served: RangeServer, local: ffrecord.Reader, fault: str
) -> None:
    reader = ffrecord.open(addresses(served), timeout_s=8)
    for i in range(0, COUNT, 10):
        reader.read([i])  # What is usual is known.
    before = len(served.seen)
    served.fault = lambda number, path: fault if number == before + 3 else None
    begin = time.monotonic()
    assert_same(reader, local)
    assert time.monotonic() - begin < 7


def test_a_store_that_is_gone_is_waited_for_once(served: RangeServer) -> None:
    reader = ffrecord.open(addresses(served), timeout_s=2)
    len(reader)  # No page of an index has been read.
    served.fault = lambda number, path: "silent"
    for wanted in (range(100), range(100, COUNT, 3)):
        begin = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            reader.read(wanted)
        assert time.monotonic() - begin < 9
        served.fault = lambda number, path: None
        time.sleep(0.6)
        reader.read([0, 150, 299])
        served.fault = lambda number, path: "silent"
    served.fault = lambda number, path: None


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (503, UnavailableError, "503"),
        ("reset", UnavailableError, "part-"),
        ("silent", DeadlineExceeded, "sent nothing"),
        (403, PermissionError, "403"),
        (404, FileNotFoundError, "404"),
        ("whole", ValueError, "does not support range requests"),
        ("shifted", ValueError, "instead of"),
    ],
)
def test_a_fault_that_stays_is_told(
    served: RangeServer, fault: str | int, error: type[Exception], text: str
) -> None:
    reader = ffrecord.open(addresses(served), timeout_s=2)
    reader.read([5])  # Its index page is there.
    served.fault = lambda number, path: fault
    begin = time.monotonic()
    with pytest.raises(error, match=text):
        reader.read([5])
    assert time.monotonic() - begin < 6
    served.fault = lambda number, path: None
    time.sleep(0.6)
    assert len(reader.read([5])) == 1


def test_a_server_without_ranges_is_refused_at_the_start(served: RangeServer) -> None:
    served.fault = lambda number, path: "whole"
    with pytest.raises(ValueError, match="range requests"):
        len(ffrecord.open(addresses(served)[0]))


def test_encoded_content_is_refused(served: RangeServer) -> None:
    served.headers = {"Content-Encoding": "gzip"}
    with pytest.raises(ValueError, match="encodes"):
        len(ffrecord.open(addresses(served)[0]))


def test_a_server_that_asks_for_a_pause_gets_it(served: RangeServer) -> None:
    reader = ffrecord.open(addresses(served))
    len(reader)
    before = len(served.seen)
    served.headers = {"Retry-After": "1"}
    served.fault = lambda number, path: 503 if number == before + 1 else None
    begin = time.monotonic()
    reader.read([5])
    assert time.monotonic() - begin >= 1


@pytest.mark.parametrize("is_tagged", [True, False])
def test_a_replaced_file_is_no_damage_but_a_conflict(served: RangeServer, is_tagged: bool) -> None:
    if not is_tagged:
        served.fault = lambda number, path: "untagged"
    reader = ffrecord.open(addresses(served)[0])
    reader.read([5])
    path = sorted(served.files)[0]
    data = served.files[path]
    served.files[path] = os.urandom(len(data)) if is_tagged else data + b"more"
    for policy in ("raise", "skip", "replace"):
        with pytest.raises(ConflictError, match="was replaced since it was opened"):
            reader.read([7], on_corrupt=policy)


def test_damage_at_the_store_follows_the_policy(
    served: RangeServer, local: ffrecord.Reader
) -> None:
    path = sorted(served.files)[0]
    data = bytearray(served.files[path])
    place = data.find(bytes(local[3]["data"])[:64])
    data[place] ^= 1
    served.files[path] = bytes(data)
    reader = ffrecord.open(addresses(served))
    assert len(reader.read(range(10), on_corrupt="skip")) == 9
    assert list(reader.stats()["damaged"]) == [3]
    with pytest.raises(CorruptionError, match=r"part-0\.ffr: record 3"):
        reader.read([3])


def test_redirections_are_followed_but_not_for_ever(
    served: RangeServer, local: ffrecord.Reader
) -> None:
    first = sorted(served.files)[0]
    served.fault = lambda number, path: first
    assert bytes(ffrecord.open(served.url("/moved?x=y"))[3]["data"]) == bytes(local[3]["data"])
    served.fault = lambda number, path: f"/again-{number}"
    begin = time.monotonic()
    with pytest.raises(ValueError, match="redirects"):
        len(ffrecord.open(served.url(first)))
    assert time.monotonic() - begin < 5


def test_secrets_are_not_shown(served: RangeServer) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        len(ffrecord.open(served.url("/none.ffr?X-Amz-Signature=secret")))
    assert "secret" not in str(caught.value)
    assert "/none.ffr" in str(caught.value)


def test_a_cut_object_is_damaged_and_says_so(served: RangeServer) -> None:
    path = sorted(served.files)[0]
    served.files[path] = served.files[path][:50_000]
    with pytest.raises(CorruptionError, match=r"part-0\.ffr"):
        len(ffrecord.open(served.url(path)))
    served.files[path] = b""
    with pytest.raises((CorruptionError, ValueError), match=r"part-0\.ffr"):
        len(ffrecord.open(served.url(path)))


# --- Processes -----------------------------------------------------------------------------------


def _read_in_child(reader: ffrecord.Reader, pipe: Any) -> None:
    pipe.send([int(sample["label"]) for sample in reader.read([1, 150, 299])])
    pipe.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_reads_on_and_so_does_its_parent(served: RangeServer, method: str) -> None:
    reader = ffrecord.open(addresses(served))
    reader.read([0, 100, 200])
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_read_in_child, args=(reader, theirs))
    child.start()
    theirs.close()
    assert ours.recv() == [1, 150, 299]
    child.join()
    assert child.exitcode == 0
    assert [int(sample["label"]) for sample in reader.read([2, 151])] == [2, 151]


def test_a_pickle_holds_the_addresses_alone(store: Store, local: ffrecord.Reader) -> None:
    reader = ffrecord.open("s3://bucket/train/")
    len(reader)
    text = pickle.dumps(reader)
    assert len(text) < 1024
    assert_same(pickle.loads(text), local)


def test_verify_reads_every_record(store: Store) -> None:
    (report,) = ffrecord.verify("s3://bucket/train/")
    assert (report.record_count, report.problem_count) == (COUNT, 0)


# --- The cache -----------------------------------------------------------------------------------


def _fetched(served: RangeServer) -> int:
    """Requests since the last call that were no probes of versions."""
    count = sum(asked != "bytes=0-0" for _, asked in served.seen)
    served.seen.clear()
    return count


def test_a_second_epoch_comes_from_the_cache(
    served: RangeServer, local: ffrecord.Reader, tmp_path: Path
) -> None:
    reader = ffrecord.open(addresses(served), cache=tmp_path / "cache")
    assert_same(reader, local)
    assert _fetched(served) > 0
    assert_same(reader, local)
    assert_same(pickle.loads(pickle.dumps(reader)), local)
    assert _fetched(served) == 0


def test_a_replaced_object_is_not_taken_from_the_cache(
    served: RangeServer, local: ffrecord.Reader, tmp_path: Path
) -> None:
    first, second, *_ = sorted(served.files)
    assert bytes(ffrecord.open(served.url(first), cache=tmp_path)[3]["data"]) == bytes(
        local[3]["data"]
    )
    served.files[first] = served.files[second]
    reader = ffrecord.open(served.url(first), cache=tmp_path)
    assert reader[3]["label"] == COUNT // 3 + 3
    data = bytearray(served.files[first])  # Of the same size, but damaged: that is the truth.
    data[data.find(bytes(reader[3]["data"])[:64])] ^= 1
    served.files[first] = bytes(data)
    with pytest.raises(CorruptionError):
        ffrecord.open(served.url(first), cache=tmp_path).read([3])


def test_what_happens_to_a_cache_changes_no_record(
    served: RangeServer, local: ffrecord.Reader, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    reader = ffrecord.open(addresses(served), cache=cache, check_data=False)
    assert_same(reader, local)
    entries = sorted(cache.rglob("*.blocks"))
    assert len(entries) == 3
    for entry in entries:
        data = bytearray(entry.read_bytes())
        data[5000::10_000] = os.urandom(len(data[5000::10_000]))
        entry.write_bytes(data)
    assert_same(reader, local)
    shutil.rmtree(cache)
    assert_same(reader, local)
    time.sleep(1.1)
    assert_same(reader, local)


def test_a_cache_needs_a_store_and_a_place(
    served: RangeServer, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="cache is for objects"):
        len(ffrecord.open(folder, cache=tmp_path))
    with pytest.raises(ValueError, match="64 MiB"):
        ffrecord.open(addresses(served), cache=tmp_path, cache_size=1 << 20)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="cache"):
        len(ffrecord.open(addresses(served), cache=tmp_path / "file"))
    served.fault = lambda number, path: "untagged"
    with pytest.raises(ValueError, match="ETag or Last-Modified"):
        len(ffrecord.open(addresses(served), cache=tmp_path))


# --- Credentials ---------------------------------------------------------------------------------


class Identities:
    """The services that give credentials, on one port; they hold for `holds_s`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], str]] = []
        self.holds_s = 3600.0
        self.status = 200

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        """Answers as each service does."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)).decode()
        headers = {name: value for name, value in environ.items() if name.startswith("HTTP_")}
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.asked.append((method, path, headers, body))
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.holds_s))
        key = f"KEY{len(self.asked)}"
        text = (
            f'{{"Code": "Success", "AccessKeyId": "{key}", "SecretAccessKey": "s/e+c=",'
            f' "Token": "t", "Expiration": "{end}"}}'
        )
        if path == "/latest/api/token":
            text = "metadata-token"
        elif path.endswith("security-credentials/"):
            text = "the-role"
        elif method == "POST":
            text = (
                f"<R><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s"
                f"</SecretAccessKey><SessionToken>t</SessionToken><Expiration>{end}</Expiration>"
                "</Credentials></R>"
            )
        start_response(f"{self.status} X", [("Content-Length", str(len(text)))])
        return [text.encode()]


@pytest.fixture
def identities(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """No credentials but those of the services, whose address is `.address`."""
    from werkzeug.serving import make_server

    services: Any = Identities()
    server = make_server("127.0.0.1", 0, services, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    services.address = f"http://127.0.0.1:{server.server_port}"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    yield services
    server.shutdown()
    thread.join()


def test_without_credentials_all_places_are_named(identities: Any) -> None:
    with pytest.raises(PermissionError) as caught:
        len(ffrecord.open("s3://bucket/train/"))
    for place in ("AWS_ACCESS_KEY_ID", "WEB_IDENTITY", ".aws/credentials", "CONTAINER", "instance"):
        assert place in str(caught.value)


def test_an_instance_gives_credentials(identities: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", identities.address)
    assert len(ffrecord.open("s3://bucket/train/")) == COUNT
    (put, _, ttl, _), (get, path, token, _), _ = identities.asked
    assert (put, get, path) == ("PUT", "GET", "/latest/meta-data/iam/security-credentials/")
    assert ttl["HTTP_X_AWS_EC2_METADATA_TOKEN_TTL_SECONDS"] == "21600"
    assert token["HTTP_X_AWS_EC2_METADATA_TOKEN"] == "metadata-token"


def test_a_container_gives_credentials(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", identities.address + "/v1?x=y")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    assert len(ffrecord.open("s3://bucket/train/")) == COUNT
    ((_, path, headers, _),) = identities.asked
    assert (path, headers["HTTP_AUTHORIZATION"]) == ("/v1", "secret")


def test_a_container_token_goes_to_no_other_machine(
    identities: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/v1")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "secret")
    with pytest.raises(PermissionError, match="neither https:// nor on this machine"):
        len(ffrecord.open("s3://bucket/train/"))


def test_a_web_identity_gives_credentials(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "jwt"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", identities.address)
    with pytest.raises(PermissionError, match="jwt cannot be read"):
        len(ffrecord.open("s3://bucket/train/"))
    (tmp_path / "jwt").write_text("a.b+c\n")
    assert len(ffrecord.open("s3://bucket/train/")) == COUNT
    ((method, _, _, body),) = identities.asked
    assert method == "POST"
    assert "WebIdentityToken=a.b%2Bc" in body
    assert "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr" in body


def test_a_profile_takes_a_role(
    identities: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(
        "[profile job]\nrole_arn = arn:r\nsource_profile = me\nexternal_id = x\n"
    )
    (tmp_path / ".aws/credentials").write_text(
        "[me]\naws_access_key_id = A\naws_secret_access_key = S\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "job")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", identities.address)
    assert len(ffrecord.open("s3://bucket/train/")) == COUNT
    ((_, _, headers, body),) = identities.asked
    assert "ExternalId=x" in body
    assert "Credential=A/" in headers["HTTP_AUTHORIZATION"]


def test_credentials_are_renewed_before_they_end(
    identities: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", identities.address + "/v1")
    identities.holds_s = 2
    reader = ffrecord.open("s3://bucket/train/")
    reader.read([0])
    assert len(identities.asked) == 1  # They hold; nobody is asked all the time.
    time.sleep(3)
    reader.read([0])
    assert len(identities.asked) == 2
    identities.status = 500
    time.sleep(3)
    with pytest.raises(UnavailableError, match="credentials service"):
        reader.read([0])
    identities.status = 200
    time.sleep(0.6)
    reader.read([0])


def test_credentials_that_a_store_refuses_as_expired_are_renewed_at_once(
    identities: Any, monkeypatch: pytest.MonkeyPatch, served: RangeServer
) -> None:
    path = sorted(served.files)[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", served.address)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", identities.address + "/v1")
    reader = ffrecord.open(f"s3://{path[1:]}")
    reader.read([0])
    before = len(served.seen)
    served.fault = lambda number, path: "expired" if number == before + 1 else None
    reader.read([1])
    assert len(identities.asked) == 2
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "old")
    served.fault = lambda number, path: "expired"
    begin = time.monotonic()
    with pytest.raises(PermissionError, match="ExpiredToken"):
        len(ffrecord.open(f"s3://{path[1:]}"))
    assert time.monotonic() - begin < 2
