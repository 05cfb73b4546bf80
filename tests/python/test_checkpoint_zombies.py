"""Goal: a job that was taken for dead, and wakes up, replaces nothing that the next one has saved.

Method: two processes at one run, at each kind of target; the one that has been away saves late,
with overwrite=True, as jobs do that may be restarted.
"""

import pytest

import ffrecord.checkpoint as ckpt
from ffrecord.errors import ConflictError
from going_back import Runs, save, saves_in_another_process, seen, value

# A store is in this process: another one does not find it.
pytestmark = [
    pytest.mark.wrong_data,
    pytest.mark.parametrize("runs", ["folder", "replicated", "daemon"], indirect=True),
]


@pytest.mark.parametrize("began", ["with a save", "with a load", "with a look"])
def test_a_late_save_replaces_none_of_another_process(runs: Runs, began: str) -> None:
    run = runs("run")
    for step in (1, 2):
        assert began == "with a save" or saves_in_another_process(run, None, step) == 0
        if began == "with a save":
            save(run, step, overwrite=True)
    if began != "with a save":
        value(run, resume=True if began == "with a load" else None)
    for step in (3, 4):
        assert saves_in_another_process(run, step - 1, step, overwrite=True) == 0
    for step in (3, 4):
        with pytest.raises(ConflictError, match=f"another process has saved step {step}"):
            save(run, step, overwrite=True)
    assert seen(run) == [1, 2, 3, 4]
    own = 2 if began == "with a save" else 1002
    assert [value(run, step, resume=False) for step in (2, 3, 4)] == [own, 1003, 1004]
    # With the latest, it goes on.
    assert value(run) == 1004
    save(run, 4, overwrite=True)
    save(run, 5, overwrite=True)
    assert seen(run) == [1, 2, 3, 4, 5]


def test_a_late_save_replaces_no_replacement_of_the_step_it_goes_on_from(runs: Runs) -> None:
    run = runs("run")
    for step in (1, 2):
        save(run, step)
    ckpt.remove(run, 2)
    assert saves_in_another_process(run, 1, 2, overwrite=True) == 0
    with pytest.raises(ConflictError):
        save(run, 2, overwrite=True)
    assert value(run, 2, resume=False) == 1002


def test_a_run_from_the_start_replaces_what_was_there(runs: Runs) -> None:
    """The same program again, at the address of before."""
    run = runs("run")
    for step in (1, 2, 3):
        assert saves_in_another_process(run, None, step) == 0
    for step in (1, 2, 3):
        save(run, step, overwrite=True)
    assert [value(run, step, resume=False) for step in (1, 2, 3)] == [1, 2, 3]


def test_a_process_replaces_its_own_steps(runs: Runs) -> None:
    run = runs("run")
    for step in (1, 2, 3):
        save(run, step, overwrite=True)
    for step in (3, 2, 3, 4):
        save(run, step, 10 + step, overwrite=True)
    assert value(run, 1) == 1
    save(run, 2, 22, overwrite=True)  # It goes back, and on.
    save(run, 3, 23, overwrite=True)
    assert seen(run) == [1, 2, 3]
    assert [value(run, step, resume=False) for step in (1, 2, 3)] == [1, 22, 23]
