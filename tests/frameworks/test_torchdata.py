"""Goal: torchdata's loader with our sampler gives each record once, and resumes at any size.

Method: the tutorial's own script, on real ranks, with worker processes; and what users forget.
"""

from pathlib import Path

import pytest
from tutorial import check_exact, framework, replace_in, run, write_script

framework("torchdata.stateful_dataloader")
PRELOAD = ("torchdata.stateful_dataloader",)


@pytest.mark.parametrize(("stop", "worlds"), [(7, (2, 1)), (13, (3,))])
def test_a_run_stopped_in_an_epoch_goes_on_at_the_next_record(
    stop: int, worlds: tuple[int, ...], tmp_path: Path
) -> None:
    script = write_script("torchdata.md", "train.py", tmp_path)
    before = run(script, 2, str(stop)).steps()
    assert len(before) == stop

    for world in worlds:
        check_exact(before + run(script, world, "0", "resume").steps())


def test_a_sampler_in_the_wrong_place_is_told_where_it_belongs(tmp_path: Path) -> None:
    script = write_script("torchdata.md", "train.py", tmp_path)
    replace_in(script, "batch_sampler=sampler", "sampler=sampler")

    with pytest.raises(Exception, match=r"write DataLoader\(dataset, batch_sampler=sampler\)"):
        run(script, 2, "0")
