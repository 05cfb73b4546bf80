"""Goal: reads from a store survive faults that pass, and tell those that stay by their names.

Method: a server of ranges throttles, cuts off, stalls, lies, redirects, and replaces files while
they are read.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ffrecord
from ffrecord import ConflictError, CorruptionError, DeadlineExceeded, UnavailableError
from files_at_a_store import (
    COUNT,
    addresses,
    assert_same,
    at_a_server,
    read_again,
    three_files,
)
from range_server import RangeServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_files(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def local(folder: Path) -> ffrecord.Reader:
    return ffrecord.open(folder)


@pytest.fixture
def served(folder: Path) -> Iterator[RangeServer]:
    yield from at_a_server(folder)


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
    reader = ffrecord.open(addresses(served), timeout_s=300)
    for i in range(0, COUNT, 10):
        reader.read([i])  # What is usual is known.
    before = len(served.seen)
    served.fault = lambda number, path: fault if number == before + 3 else None
    assert_same(reader, local)  # The first answer has not come.


def test_an_answer_that_trickles_is_asked_for_again_though_others_take_long_too(
    served: RangeServer, local: ffrecord.Reader
) -> None:
    served.delay_s = 0.2  # A byte comes sooner than another answer would begin.
    reader = ffrecord.open(addresses(served), timeout_s=300)
    for i in range(0, COUNT, 10):
        reader.read([i])
    before = len(served.seen)
    served.fault = lambda number, path: "dribble" if number == before + 3 else None
    assert_same(reader, local)  # The first answer takes hours.


def test_a_store_that_is_gone_is_waited_for_once(served: RangeServer) -> None:
    reader = ffrecord.open(addresses(served), timeout_s=2)
    len(reader)  # No page of an index has been read.
    served.fault = lambda number, path: "silent"
    for wanted in (range(100), range(100, COUNT, 3)):
        begin = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            reader.read(wanted)
        assert time.monotonic() - begin < 60  # And not 2 s for each record.
        served.fault = lambda number, path: None
        read_again(reader, [0, 150, 299])
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
    is_final = error in (PermissionError, FileNotFoundError, ValueError)
    reader = ffrecord.open(addresses(served), timeout_s=60 if is_final else 2)
    read_again(reader, [5])  # Its index page is there.
    before = len(served.seen)
    served.fault = lambda number, path: fault
    with pytest.raises(error, match=text):
        reader.read([5])
    assert not is_final or len(served.seen) == before + 1
    served.fault = lambda number, path: None
    assert len(read_again(reader, [5])) == 1


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


def test_a_server_that_names_the_version_no_more_is_not_believed(served: RangeServer) -> None:
    reader = ffrecord.open(addresses(served)[0])
    reader.read([5])
    served.fault = lambda number, path: "untagged"
    with pytest.raises(ConflictError, match=r"part-0\.ffr.*sent an ETag.*sends none now"):
        reader.read([7])


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
    before = len(served.seen)
    with pytest.raises(ValueError, match="redirects"):
        len(ffrecord.open(served.url(first)))
    assert len(served.seen) - before < 50


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
