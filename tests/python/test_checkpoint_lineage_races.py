"""Goal: of savers that get in each other's way, none is told of a success that is lost.

Method: processes that go back at the same moment, many times; at a store, a save and a removal come
in between two requests of another save.
"""

import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest

import ffrecord.checkpoint as ckpt
from ffrecord.errors import ConflictError
from going_back import Runs, go_back, save, seen, value
from object_store import Store

ROUNDS = 12


@pytest.mark.wrong_data
@pytest.mark.parametrize("runs", ["folder", "daemon", "replicated"], indirect=True)
def test_of_processes_that_go_back_at_once_one_succeeds(runs: Runs) -> None:
    names = [runs(f"run-{number}") for number in range(ROUNDS)]
    for name in names:
        for step in (1, 2, 3):
            save(name, step)
    context = multiprocessing.get_context("forkserver")
    together, told = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=_go_back_at, args=(names, step, together, told)) for step in (2, 3)
    ]
    for process in processes:
        process.start()
    answers = [told.get(timeout=120) for _ in range(2 * ROUNDS)]
    for process in processes:
        process.join()
    for number, name in enumerate(names):
        saved = {step: text for of, step, text in answers if of == number and len(text) == 32}
        assert len(saved) == 1, [answer for answer in answers if answer[0] == number]
        ((step, attempt),) = saved.items()
        latest = ckpt.latest(name)
        assert latest is not None
        assert (latest.step, latest.attempt) == (step, attempt), "a save that succeeded is lost"
        assert seen(name) == [1, step]


@pytest.mark.wrong_data
def test_what_was_saved_after_a_saver_was_killed_is_not_given_up_for_it(tmp_path: Path) -> None:
    run, twin = tmp_path / "run", tmp_path / "twin"
    for step in (1, 2, 3):
        save(str(run), step)
    shutil.copytree(run, twin)
    value(str(twin), 1)
    save(str(twin), 2, 20)
    # The saver was killed when it had claimed the number of its record.
    shutil.copy(twin / "line-1", run)
    assert seen(str(run)) == [1], "it has gone back, as if it had been killed just after that"
    assert ckpt.verify(run, "latest") == []
    value(str(run))
    for step in (2, 3, 4):
        save(str(run), step, 100 * step)
    value(str(run), 3)
    save(str(run), 4, 4000)
    assert seen(str(run)) == [1, 2, 3, 4]
    assert ckpt.prune(run, keep_last=4) == []
    assert value(str(run)) == 4000


@pytest.mark.wrong_data
def test_a_damaged_record_that_is_removed_leaves_its_line(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    go_back(run)
    (record,) = (tmp_path / "run").glob("line-*-*")
    record.unlink()
    assert seen(run) == [1, 2]
    value(run)
    save(run, 3, 30)
    save(run, 4, 40)
    value(run, 3)
    save(run, 4, 400)
    assert seen(run) == [1, 2, 3, 4]
    assert ckpt.prune(run, keep_last=4) == []


def _go_back_at(names: list[str], step: int, together: Any, told: Any) -> None:  # noqa: ANN401
    for number, name in enumerate(names):
        value(name, 1, resume=True)
        together.wait()
        try:
            told.put((number, step, save(name, step, 100 * step).attempt))
        except ConflictError as error:
            told.put((number, step, str(error)))


@pytest.mark.wrong_data
@pytest.mark.parametrize("runs", ["store"], indirect=True)
def test_a_save_whose_step_was_removed_takes_nothing_from_the_next(
    runs: Runs, store: Store
) -> None:
    """As soon as its root is there, the step is removed, and another save of it committed."""
    run = runs("run")
    others: list[ckpt.Commit] = []

    def after(number: int, request: str) -> None:
        if request.startswith("PUT") and request.endswith(".root") and not others:
            others.append(ckpt.Commit(0, "", 0))  # Not for the requests below.
            ckpt.remove(run, 1)
            others[0] = save(run, 1, 10)

    store.set_door(lambda number, method, path: "serve", after)
    with pytest.raises(FileExistsError, match="was removed meanwhile"):
        save(run, 1)
    store.serve_all()
    assert ckpt.list(run) == others
    assert value(run) == 10
    assert ckpt.verify(run) == []


@pytest.mark.wrong_data
@pytest.mark.parametrize("runs", ["store"], indirect=True)
def test_a_save_whose_step_was_removed_clears_nothing_away(runs: Runs, store: Store) -> None:
    """The removal and the other save come when this one has looked, and clears leftovers away."""
    run = runs("run")
    others: list[ckpt.Commit] = []
    looked: list[str] = []

    def after(number: int, request: str) -> None:
        if others:
            return
        looked.append(request)
        was_put = any("PUT" in each and each.endswith(".root") for each in looked)
        if was_put and "delimiter" in request and "step-000000001-" in request:
            others.append(ckpt.Commit(0, "", 0))
            ckpt.remove(run, 1)
            others[0] = save(run, 1, 10)

    store.set_door(lambda number, method, path: "serve", after)
    save(run, 1)  # It was the step, and was removed then.
    store.serve_all()
    assert others
    assert ckpt.list(run) == others
    assert value(run) == 10
