"""The arms that export a checkpoint, and copy a file of the same bytes.

Both begin with cold files, and end when the bytes are on the disk.
"""

import os
import pathlib
import subprocess
from typing import Any

import harness


def export_ours(arms: Any) -> float:  # noqa: ANN401 (Arms, of the page that imports this one)
    """Export the run of `save_ours` to a folder."""
    import ffrecord.weights as weights

    out = arms.fresh("export")
    arms.cold(arms.folder / "ours")
    return float(arms.timed(lambda: weights.export(arms.folder / "ours", out, group="alone")))


def copy_file(arms: Any) -> float:  # noqa: ANN401
    """Copy what the arm before has exported, by cp, and sync the copy."""
    (source,) = pathlib.Path(arms.folder / "export").glob("*.safetensors")
    copy = arms.fresh("copy")
    arms.cold(source)

    def run() -> None:
        subprocess.run(["cp", source, copy], check=True)
        descriptor = os.open(copy, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    return float(arms.timed(run))


def exports_of(arms: Any) -> list[harness.Arm]:  # noqa: ANN401
    """Both."""
    return [
        harness.Arm("export_ours", "one rank, verified, fsync", lambda _: export_ours(arms)),
        harness.Arm("cp", "cp of the exported file, and fsync", lambda _: copy_file(arms)),
    ]
