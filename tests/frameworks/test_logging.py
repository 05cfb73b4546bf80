"""Goal: what the page on logging logs is what loggers give back, at each step and under each name.

Method: the page's own code; then each logger's own reader. No account and no network is used.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tutorial import ROOT, framework, run_page

mlflow = framework("mlflow")
framework("wandb")
framework("tensorboard")
# Of a loader and a monitor, whatever has happened; docs/reference/metrics.md names them.
NAMES = {
    *("loader/batches", "loader/records", "loader/size_bytes", "loader/wait_s"),
    *("loader/wait_share", "loader/bytes_per_s", "loader/stage_device_s", "loader/damaged"),
    *("checkpoint/saves", "checkpoint/stall_s", "checkpoint/stalled_fraction"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("logging")
    own = {"WANDB_SILENT": "true", "WANDB_DIR": str(made), "HOME": str(made)}
    run_page(ROOT / "docs" / "tutorials" / "logging.md", made, **own)
    return made


def test_mlflow_has_each_figure_at_each_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(tracking_uri=f"file:{folder}/mlflow")
    (run,) = client.search_runs(["0"])

    assert set(run.data.metrics) >= NAMES
    for name, expected in (("loader/batches", [10.0, 20.0]), ("checkpoint/saves", [1.0, 2.0])):
        history = client.get_metric_history(run.info.run_id, name)
        assert [(one.step, one.value) for one in history] == list(
            zip([10, 20], expected, strict=True)
        )


def test_tensorboard_has_each_figure_at_each_step(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()

    assert set(events.Tags()["scalars"]) >= NAMES
    found = [(one.step, one.value) for one in events.Scalars("loader/records")]
    assert found == [(10, 100.0), (20, 200.0)]


def test_wandb_has_each_figure_at_each_step(folder: Path) -> None:
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")

    rows = history(path)

    assert set(rows[-1]) >= NAMES
    assert [row["loader/records"] for row in rows] == [100.0, 200.0]


BLOCK = 32_768  # Of the log that a run is kept in, as LevelDB's: pieces lie in blocks.
PIECE_HEAD = 7  # Checksum, size, kind; the file has a head of the same size.
WHOLE, LAST = 1, 4


def records(log: bytes) -> Iterator[bytes]:
    """What a log holds, piece by piece put together."""
    at, record = PIECE_HEAD, b""
    while at + PIECE_HEAD <= len(log):
        if (left := BLOCK - at % BLOCK) < PIECE_HEAD:
            at += left
            continue
        size, kind = int.from_bytes(log[at + 4 : at + 6], "little"), log[at + 6]
        record += log[at + PIECE_HEAD : at + PIECE_HEAD + size]
        at += PIECE_HEAD + size
        if kind in (WHOLE, LAST):
            yield record
            record = b""


def history(path: Path) -> list[dict[str, Any]]:
    """What a run logged, from the file that it would upload."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    return rows
