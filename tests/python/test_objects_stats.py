"""Goal: the statistics of a reader tell what it asked of its stores, and what its cache saved.

Method: the numbers are compared with the requests that a server of ranges has seen.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import ffrecord
from ffrecord._cli.main import cli
from files_at_a_store import COUNT, addresses, at_a_server, three_files
from range_server import RangeServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_files(tmp_path_factory.mktemp("objects"))


@pytest.fixture
def served(folder: Path) -> Iterator[RangeServer]:
    yield from at_a_server(folder)


def test_requests_are_counted_as_the_server_sees_them(served: RangeServer) -> None:
    reader = ffrecord.open(addresses(served))
    batch = reader.read(range(COUNT))
    stats = reader.stats()
    assert stats["store_requests"] == len(served.seen)
    assert stats["store_bytes"] >= int(batch.sizes.sum() if batch.sizes.ndim else 0)
    assert stats["store_retries"] == stats["store_throttled"] == 0
    assert stats["cache_hits"] == stats["cache_misses"] == stats["cache_evictions"] == 0


def test_retries_and_refusals_are_counted(served: RangeServer) -> None:
    reader = ffrecord.open(addresses(served))
    reader.read([0])
    before = reader.stats()
    refused = []

    def fault(number: int, path: str) -> int | None:
        if len(refused) == 2:
            return None
        refused.append(path)
        return 503 if len(refused) == 1 else 500

    served.fault = fault
    reader.read([COUNT - 1])
    after = reader.stats()
    assert after["store_retries"] - before["store_retries"] == 2
    assert after["store_throttled"] - before["store_throttled"] == 1


def test_a_cache_counts_what_it_saves(served: RangeServer, tmp_path: Path) -> None:
    reader = ffrecord.open(addresses(served), cache=tmp_path, check_data=False)
    reader.read(range(COUNT))
    filled = reader.stats()
    assert filled["cache_misses"] > 0
    reader.read(range(COUNT))
    again = reader.stats()
    assert again["store_requests"] == filled["store_requests"]
    assert again["cache_misses"] == filled["cache_misses"]
    assert again["cache_hits"] > filled["cache_hits"]


def test_local_readers_and_unopened_ones_have_no_store(served: RangeServer, folder: Path) -> None:
    local = ffrecord.open(folder)
    local.read([0])
    assert "store_requests" not in local.stats()
    assert "store_requests" not in ffrecord.open(addresses(served)).stats()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_adds_up_the_requests_of_its_workers(served: RangeServer, workers: int) -> None:
    torch = pytest.importorskip("ffrecord.torch")
    dataset = torch.Dataset(addresses(served))
    loader = torch.DataLoader(dataset, batch_size=50, num_workers=workers, collate_fn=len)
    len(loader)
    served.seen.clear()
    assert sum(loader) == COUNT
    stats = loader.stats()
    assert 0 < stats["store_requests"] <= len(served.seen)
    assert stats["store_bytes"] > 0


def test_the_doctor_reads_from_a_store(served: RangeServer) -> None:
    done = CliRunner().invoke(cli, ["doctor", addresses(served)[0], "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["store"] == addresses(served)[0]
    assert found["store_records"] == COUNT // 3
    assert found["store_requests"] == len(served.seen)
    assert found["store_read_ms"] > 0


def test_the_doctor_tells_what_a_store_refuses(served: RangeServer) -> None:
    done = CliRunner().invoke(cli, ["doctor", served.url("/nothing.ffr"), "--timeout", "2"])
    assert done.exit_code != 0
