"""Goal: packets have the marks of their traffic class, at both ends, and none by default.

Method: a client and a daemon in a network namespace of their own, whose packets are read.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ffrecord.runtime


def dscps(tmp_path: Path, marks: dict[str, dict[str, int]], *flags: str) -> Any:  # noqa: ANN401
    """Those of `marked_traffic`."""
    namespace = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("a network namespace needs the rights of root")
    program = Path(__file__).with_name("marked_traffic.py")
    ended = subprocess.run(
        [*namespace, sys.executable, program, tmp_path, json.dumps(marks), json.dumps(flags)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_packets_have_no_mark_by_default(tmp_path: Path) -> None:
    found = dscps(tmp_path, {})
    assert found["upload"]["to"] == found["read"]["from"] == found["read_ahead"]["from"] == [0]


def test_each_end_marks_what_it_sends_by_class(tmp_path: Path) -> None:
    marks = {"urgent": 34, "prefetch": 10, "checkpoint": 8}
    flags = ("--dscp", "urgent=36,prefetch=12,checkpoint=14", "--socket-priority", "urgent=4")
    found = dscps(tmp_path, {"dscp": marks, "socket_priority": {"urgent": 3}}, *flags)
    assert found["upload"]["to"] == [8]
    assert found["read"]["from"] == [36]
    # What a low queue waits for is urgent.
    assert set(found["read_ahead"]["from"]) - {36} == {12}


@pytest.mark.parametrize(
    ("marks", "text"),
    [
        ({"dscp": {"bulk": 1}}, "'bulk'"),
        ({"dscp": {"urgent": 64}}, "DSCP 64.*0 to 63"),
        ({"socket_priority": {"collectives": 7}}, "priority 7.*0 to 6"),
    ],
)
def test_marks_that_cannot_be_are_refused(marks: dict[str, dict[str, int]], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ffrecord.runtime.mark_traffic(**marks)
