"""Goal: with the Trainer, ranks see each record once an epoch, and resume at the next, at any size.

Method: the tutorial's own script, on real ranks.
"""

import shutil
from pathlib import Path

import pytest
from tutorial import check_exact, expected, framework, replace_in, run, write_script

framework("accelerate")
framework("transformers")
PRELOAD = ("transformers.trainer",)
CALLBACK = "from ffrecord.torch.huggingface import CheckpointCallback"


@pytest.mark.parametrize(("stop", "saved", "worlds"), [(9, 7, (2, 1)), (15, 14, (3,))])
def test_a_trainer_stopped_in_an_epoch_goes_on_at_the_next_record(
    stop: int, saved: int, worlds: tuple[int, ...], tmp_path: Path
) -> None:
    script = write_script("huggingface-trainer.md", "train.py", tmp_path)
    before = run(script, 2, str(stop)).steps()
    assert len(before) == stop

    replace_in(script, "checkpoint-7", f"checkpoint-{saved}")
    for world in worlds:
        check_exact(before[:saved] + run(script, world, "0", "resume").steps())


@pytest.mark.parametrize(("stop", "worlds"), [(7, (2, 1)), (15, (3,))])
def test_our_callback_goes_on_at_the_next_record(
    stop: int, worlds: tuple[int, ...], tmp_path: Path
) -> None:
    script = write_script("huggingface-trainer.md", "train.py", tmp_path)
    replace_in(script, "from ffrecord.torch import", f"{CALLBACK}\nfrom ffrecord.torch import")
    replace_in(script, "save_steps=7", 'save_strategy="no"')
    ours = 'callbacks=[CheckpointCallback("run", every_steps=5)]'
    replace_in(script, 'Dataset("numbers.ffr"))', f'Dataset("numbers.ffr"), {ours})')
    replace_in(script, '"saved/checkpoint-7" if resume else None', "None")
    before = [labels for _, labels in run(script, 2, str(stop)).steps()]
    assert len(before) == stop
    shutil.copytree(tmp_path / "run", tmp_path / "kept")

    for world in worlds:
        shutil.rmtree(tmp_path / "run")
        shutil.copytree(tmp_path / "kept", tmp_path / "run")
        after = [labels for _, labels in run(script, world, "0").steps()]
        assert before + after == [labels for _, labels in expected()]


def test_the_trainers_own_loader_fills_up_the_last_batch_and_reads_each_record(
    tmp_path: Path,
) -> None:
    script = write_script("huggingface-trainer.md", "train.py", tmp_path)
    replace_in(script, "def get_train_dataloader", "def unused")
    replace_in(script, "label.", "labels.")
    replace_in(script, "(self, label)", "(self, labels)")  # As its collator calls them.

    steps = run(script, 2, "0").steps()

    labels = [label for epoch, batch in steps if epoch == 0 for label in batch]
    assert set(labels) == set(range(125))  # None is lost,
    assert len(labels) > 125  # but accelerate repeats some, as the page says.
