"""Goal: no time limit that makes no sense reaches the library, through whatever call it comes.

Method: every binding that takes a limit is called with numbers that are none; which ones do is
read from the bindings themselves, so that a new one is among them. Ctrl-C comes before a limit.
"""

import inspect
import math
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import ffrecord
import ffrecord.checkpoint as ckpt
from ffrecord import _ffrecord
from files_at_a_store import skip_without_http
from interrupting import interrupted_after

# Nothing listens there, should a call get that far.
_ADDRESS = "ffrecord://127.0.0.1:1/nothing"

# Of each type, by what its name in a signature begins with; None for all others.
_VALUES = {"str": _ADDRESS, "typing.SupportsInt": 1, "bool": False, "bytes": b"", "list": [],
           "collections.abc.Sequence": []}  # fmt: skip


def _taking_limits() -> list[tuple[str, Callable[..., object], str]]:
    """Name, callable, and signature as pybind11 tells it."""
    found = []
    for name, thing in vars(_ffrecord).items():
        call = thing.__init__ if inspect.isclass(thing) else thing
        about = getattr(call, "__doc__", None) or ""
        if "timeout_s" in about:
            found.append((name, thing, about.splitlines()[0]))
    return found


def _arguments(signature: str) -> dict[str, object]:
    """Something of the right type for each parameter without a default."""
    arguments: dict[str, object] = {}
    for parameter in re.findall(r"(?<=[(,] )?\w+: [^,()]+(?:\[[^\]]*\])?[^,()]*", signature):
        name, kind = parameter.split(": ", 1)
        if name != "self" and " = " not in kind:
            fits = (value for start, value in _VALUES.items() if kind.startswith(start))
            arguments[name] = None if "| None" in kind else next(fits, None)
    return arguments


def test_the_bindings_that_take_limits_are_found() -> None:
    names = {name for name, _, _ in _taking_limits()}
    assert {"publish", "CheckpointReader", "PreparedSave"} <= names
    assert {"CollectiveEngine", "remove_published", "copy_checkpoint"} <= names


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf, -math.inf, 1e300])
def test_a_limit_that_is_none_is_a_value_error_of_every_binding(limit: float) -> None:
    for name, call, signature in _taking_limits():
        if name == "CollectiveEngine" and limit >= 0:
            continue  # It waits for a day at most.
        with pytest.raises(ValueError, match="timeout_s is") as raised:
            call(**_arguments(signature) | {"timeout_s": limit})
        assert "seconds" in str(raised.value), name


def test_a_checkpoint_is_neither_written_nor_looked_for_with_such_a_limit(tmp_path: Path) -> None:
    for limit in (0.0, math.nan):
        with pytest.raises(ValueError, match="timeout_s is"):
            ckpt.save(tmp_path, 1, {"a": 1}, timeout_s=limit)
        with pytest.raises(ValueError, match="timeout_s is"):
            ckpt.latest(tmp_path, timeout_s=limit)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "address", ["ffrecord://{}/name", "http://{}/x.ffr", "s3://bucket/x.ffr", "s3://bucket/train/"]
)
def test_ctrl_c_ends_an_opening_before_its_limit(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not address.startswith("ffrecord://"):
        skip_without_http()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # Connects, and says nothing.
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{place}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        monkeypatch.setenv("no_proxy", "*")
        with interrupted_after(0.3), pytest.raises(KeyboardInterrupt):
            len(ffrecord.open(address.format(place), timeout_s=600))
