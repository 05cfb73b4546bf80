"""The commands, in this process: through the function that the installed programs call.

Exit codes and what is printed are compared.
"""

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from files_paths import Kept, demand
from table_values import Differs, same_json

Command = Callable[[Kept, str, Path], None]
"""Given a file, where it is (an address, or its path), and an empty folder."""


def run(*words: object) -> tuple[int, bytes, str]:
    """Run `ffrecord`, or `ffrecord-pack`; return exit code, standard output and error."""
    from ffrecord._cli.console import run as run_command
    from ffrecord._cli.main import cli
    from ffrecord._cli.pack import command as pack

    program, *arguments = map(str, words)
    kept = sys.argv, sys.stdout, sys.stderr
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    sys.argv = [program, *arguments]
    sys.stdout, sys.stderr = streams
    try:
        code = run_command(pack if program == "ffrecord-pack" else cli)
    finally:
        sys.argv, sys.stdout, sys.stderr = kept
    for stream in streams:
        stream.flush()
    out, err = (stream.buffer.getvalue() for stream in streams)  # type: ignore[attr-defined]
    return code, out, err.decode("utf-8", "replace")


def done(*words: object) -> bytes:
    """What a command prints that has no reason to fail."""
    code, out, err = run(*words)
    demand(code == 0, f"{' '.join(map(str, words))}: exit code {code}: {err.strip()[-300:]}")
    return out


def lines_of(out: bytes) -> list[Any]:
    """JSON lines."""
    return [json.loads(line) for line in out.decode().splitlines()]


def check_json(file: Kept, seen: Any, truth: Any, names: Sequence[str], where: str) -> None:  # noqa: ANN401
    """A record in JSON against a row."""
    if not file.columns.spelled:
        demand(same_json(pa.binary(), seen, truth), f"{where}: {seen!r:.150}, not {truth!r:.150}")
        return
    demand(isinstance(seen, dict), f"{where}: {seen!r:.150} is no object")
    demand(list(seen) == list(names), f"{where}: the columns {list(seen)}, not {list(names)}")
    for name in names:
        kind = file.columns.kinds[name]
        try:
            holds = same_json(kind, seen[name], truth[name])
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise Differs(f"{where}, column {name}: {seen[name]!r:.150}: {error!r}") from None
        said = f"{seen[name]!r:.150}, not {truth[name]!r:.150} ({kind.arrow})"
        demand(holds, f"{where}, column {name}: {said}")
