"""Beginning and ending a profile in a program."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ffrecord._base import recording, torch_steps
from ffrecord.errors import CorruptionError


@contextlib.contextmanager
def profile(out: str | os.PathLike[str], *, show: bool = True) -> Iterator[Path]:
    """Profile training in a block: what each step waits for, and why.

        with ffrecord.profile("runs/x/profile"):
            train()

    Each rank writes a file in `out`, all ranks of a run the same folder; `ffrecord why` and the
    other commands read it. `ffrecord prof -- python train.py` does the same without a change to the
    program. Costs less than 1 % of the time of steps. Within another profile nothing happens.

    Args:
        out: a folder for the run, made if it is missing; on a local disk or a shared one.
        show: print a table and the verdict at the end, on rank 0, to stderr.

    Yields:
        The folder.

    Raises:
        OSError: the file cannot be made.
    """
    folder = Path(out)
    if recording.on:
        yield folder
        return
    whole = os.fspath(folder.absolute())
    path = recording.begin(whole)
    before = os.environ.get(recording.FOLDER_VARIABLE)
    os.environ[recording.FOLDER_VARIABLE] = whole  # For workers.
    torch_steps.watch()
    try:
        yield folder
    finally:
        recording.end()
        if before is None:
            os.environ.pop(recording.FOLDER_VARIABLE, None)
        else:
            os.environ[recording.FOLDER_VARIABLE] = before
    if show:
        _show(folder, path)


def begin_as_told() -> None:
    """Profile this process if `ffrecord prof` has started it; it goes on without if that fails."""
    folder = os.environ.get(recording.FOLDER_VARIABLE)
    if not folder or recording.on:
        return
    path = None
    try:
        recording.attach()
        if not recording.on:
            path = recording.begin(folder)
    except (OSError, ValueError, CorruptionError) as error:
        print(f"ffrecord: this process is not profiled: {error}", file=sys.stderr)
        return
    torch_steps.watch()
    if recording.WATCHDOG_VARIABLE in os.environ:
        # A process that only starts others is silent for long. One that has a rank is none.
        recording.when_it_trains = _watch_over
        if path is not None and os.environ.get("RANK", "").isdigit():
            recording.note_trainer()


def _watch_over() -> None:
    from ffrecord._profile import watchdog  # Needs NumPy's, which workers need not import.

    if path := recording.current_path():
        watchdog.start(path)


def _show(folder: Path, path: str) -> None:
    from ffrecord._profile import files, report  # Only where a profile ends.

    try:
        if files.read(path).rank <= 0:
            print("\n".join(report.closing(files.read_run(folder))), file=sys.stderr)
    except (
        OSError,
        ValueError,
        CorruptionError,
    ) as error:
        # Training is done, and what it has made is worth more.
        print(f"no profile: {error}", file=sys.stderr)
