"""Goal: tasks that write a dataset of Ray Data learn early that their rows do not go together.

Method: the calls that Ray makes, in this process, one task after the other.
"""

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tutorial import framework

framework("ray.data")
import ffrecord.ray  # noqa: E402

pytestmark = pytest.mark.wrong_data


@pytest.mark.parametrize("nothing", [False, True])
def test_a_task_with_other_columns_fails_before_the_job_ends(nothing: bool, tmp_path: Path) -> None:
    def columns(**values: Any) -> list[Any]:  # noqa: ANN401 - of Arrow
        return [pa.table({**values, **({"gone": [None]} if nothing else {})})]

    sink = ffrecord.ray.RecordSink(tmp_path / "out")
    sink.on_write_start()
    tasks = (SimpleNamespace(task_idx=number) for number in itertools.count())
    sink.write(columns(x=[1]), next(tasks))
    sink.write(columns(x=[None]), next(tasks))
    sink.write(columns(x=[2]), next(tasks))

    for other in ({"x": ["text"]}, {"x": [1], "y": [1]}, {"y": [1]}):
        with pytest.raises(ValueError, match=r"\bx\b") as error:
            sink.write(columns(**other), next(tasks))
    sink.on_write_failed(error.value)
    assert os.listdir(tmp_path) == []
