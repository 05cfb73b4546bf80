"""Goal: the demo's profiled run shows a step with the bytes of a save, and a verdict.

Method: the run itself, on pictures of a few colours, against a daemon.
"""

import importlib
import io
import shutil
from pathlib import Path

import pytest

import ffrecord
from daemon import Daemon

pytest.importorskip("torch")
image = pytest.importorskip("PIL.Image", reason="Pillow makes the pictures")

LIBRARY = Path(__file__).resolve().parents[2] / "tools" / "demo_lib"


def _pictures(path: Path) -> None:
    with ffrecord.Writer(path, schema={"image": "bytes", "label": "i64", "id": "i64"}) as writer:
        for number in range(16 * 32):
            drawn = io.BytesIO()
            image.new("RGB", (8, 8), (number % 256, 0, 0)).save(drawn, "PNG")
            writer.write({"image": drawn.getvalue(), "label": number % 3, "id": number})


@pytest.mark.skipif(shutil.which("ffrecord") is None, reason="the commands are not installed")
def test_a_step_is_shown_with_a_save_beside_its_collectives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(LIBRARY))
    demo = importlib.import_module("demo")
    monkeypatch.setattr(demo, "BUILD", tmp_path)
    _pictures(tmp_path / "train.ffr")
    with Daemon(tmp_path / "data") as daemon:
        address = f"ffrecord://{daemon.listen}"
        ffrecord.publish(tmp_path / "train.ffr", f"{address}/pictures")
        tcp = "?transport=tcp"
        shown = demo.profile(f"{address}/pictures{tcp}", 3, f"{address}/runs/profiled{tcp}")
    lines = shown.splitlines()
    assert lines[0].startswith(("healthy", "note", "warning", "critical"))
    assert any("a usual one with a save beside it" in line for line in lines), shown
    assert any(line.startswith("rank 0    steps ") for line in lines)
    assert any(" collectives " in line and "=" in line for line in lines)
    assert any(" saves " in line and "#" in line for line in lines)
    assert "<svg" in (tmp_path / "profile.html").read_text()
