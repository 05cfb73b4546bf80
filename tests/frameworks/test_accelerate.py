"""Goal: with accelerate, ranks see each record once an epoch, and resume at the next, at any size.

Method: the tutorial's own script, on real ranks; and what users forget.
"""

from pathlib import Path

import pytest
from tutorial import check_exact, framework, replace_in, run, write_script

framework("accelerate")
PRELOAD = ("accelerate",)


@pytest.mark.parametrize(("stop", "worlds"), [(7, (2, 1)), (13, (3,))])
def test_a_run_stopped_in_an_epoch_goes_on_at_the_next_record(
    stop: int, worlds: tuple[int, ...], tmp_path: Path
) -> None:
    script = write_script("accelerate.md", "train.py", tmp_path)
    before = run(script, 2, str(stop)).steps()
    assert len(before) == stop

    for world in worlds:
        check_exact(before + run(script, world, "0", "resume").steps())


def test_torchs_loader_with_our_sampler_is_told_what_to_write(tmp_path: Path) -> None:
    script = write_script("accelerate.md", "train.py", tmp_path)
    replace_in(script, "import DataLoader, Dataset, Sampler", "import Dataset, Sampler, collate")
    replace_in(script, "loader = DataLoader(", "loader = torch.utils.data.DataLoader(")
    replace_in(script, 'last="short")', 'last="short"), collate_fn=collate')
    replace_in(script, "loader.batch_sampler.epoch", "0")

    # accelerate 1.1.1 has another complaint of its own.
    with pytest.raises(Exception, match=r"Use loader = ffrecord.torch.DataLoader\(|even_batches"):
        run(script, 2, "0")


def test_a_loader_that_was_not_prepared_gives_each_record_once(tmp_path: Path) -> None:
    script = write_script("accelerate.md", "train.py", tmp_path)
    replace_in(script, "optimizer, loader = ", "optimizer = ")
    replace_in(script, "optimizer, loader)", "optimizer)")

    check_exact(run(script, 2, "0").steps())
