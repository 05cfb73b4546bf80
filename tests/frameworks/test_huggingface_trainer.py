"""Goal: with the Trainer, ranks see each record once an epoch, and resume at the next, at any size.

Method: the tutorial's own script, on real ranks. For accumulated gradients, a tiny model, trained
at once, and in parts by new Trainers: both must see the same, and end with the same weights.
"""

import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tutorial import check_exact, expected, framework, replace_in, run, write_script

import ffrecord.checkpoint as ckpt
from ffrecord.torch import DataLoader, Sampler

framework("accelerate")
transformers = framework("transformers")
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


def save_by_our_callback(script: Path, every_steps: int, options: str = "") -> None:
    """Change the tutorial's script, and give its Trainer more options."""
    replace_in(script, "from ffrecord.torch import", f"{CALLBACK}\nfrom ffrecord.torch import")
    replace_in(script, "save_steps=7", f'save_strategy="no"{options}')
    ours = f'callbacks=[CheckpointCallback("run", every_steps={every_steps})]'
    replace_in(script, 'Dataset("numbers.ffr"))', f'Dataset("numbers.ffr"), {ours})')
    replace_in(script, '"saved/checkpoint-7" if resume else None', "None")


@pytest.mark.parametrize(("stop", "worlds"), [(7, (2, 1)), (15, (3,))])
def test_our_callback_goes_on_at_the_next_record(
    stop: int, worlds: tuple[int, ...], tmp_path: Path
) -> None:
    script = write_script("huggingface-trainer.md", "train.py", tmp_path)
    save_by_our_callback(script, every_steps=5)
    before = [labels for _, labels in run(script, 2, str(stop)).steps()]
    assert len(before) == stop
    shutil.copytree(tmp_path / "run", tmp_path / "kept")

    for world in worlds:
        shutil.rmtree(tmp_path / "run")
        shutil.copytree(tmp_path / "kept", tmp_path / "run")
        after = [labels for _, labels in run(script, world, "0").steps()]
        assert before + after == [labels for _, labels in expected()]


def test_ranks_that_accumulate_gradients_go_on_with_the_same_steps(tmp_path: Path) -> None:
    script = write_script("huggingface-trainer.md", "train.py", tmp_path)
    save_by_our_callback(script, every_steps=100, options=", gradient_accumulation_steps=2")
    with script.open("a") as text:
        text.write("weights = [each.tolist() for each in trainer.model.state_dict().values()]\n")
        text.write('print("ended", trainer.state.global_step, weights)\n')

    def ended() -> str:
        return (tmp_path / "printed0").read_text().rpartition("ended")[2]

    whole = run(script, 2, "0").steps()
    at_once = ended()
    shutil.rmtree(tmp_path / "run")
    before = run(script, 2, "8").steps()  # In the second epoch: 11 batches are 6 steps.
    assert len(before) == 15
    after = run(script, 2, "0").steps()

    assert [labels for _, labels in before + after] == [labels for _, labels in whole]
    assert ended() == at_once


class _Rows(torch.utils.data.Dataset[Any]):
    """Numbers that are their own names."""

    def __init__(self, count: int) -> None:
        self._rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self._rows[index], "name": torch.tensor(index)}


class _Model(torch.nn.Module):
    """Notes what it is trained on; has a buffer that changes with each batch, and may draw."""

    main_input_name = "x"

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.layer = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
        self.dropout = torch.nn.Dropout(dropout)
        self.seen: list[list[int]] = []

    def forward(self, x: Any, name: Any) -> dict[str, Any]:  # noqa: ANN401
        if self.training:
            self.seen.append(name.tolist())
        return {"loss": (self.layer(self.dropout(self.norm(x))) - 1).square().mean()}


class _Trainer(transformers.Trainer):  # type: ignore[misc, name-defined, unused-ignore]
    """With batches of four records, or of `batch`."""

    batch = 4
    loader: ClassVar[dict[str, Any]] = {}

    def get_train_dataloader(self) -> Any:  # noqa: ANN401
        sampler = Sampler(self.train_dataset, self.batch, seed=1, last="short")
        loader = DataLoader(self.train_dataset, batch_sampler=sampler, **self.loader)
        return self.accelerator.prepare(loader)


class _Observer(transformers.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
    """Notes steps as other callbacks see them, and stops."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.begun: list[int] = []
        self.ended: list[tuple[int, float]] = []
        self.logged: list[dict[str, float]] = []
        self.weights: dict[str, Any] = {}  # After the last step.

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:  # noqa: ANN401
        if "loss" in logs:
            timed = ("train_runtime", "train_tokens_per_second")
            self.logged.append({name: logs[name] for name in logs if name not in timed})

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        self.begun.append(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        self.ended.append((state.global_step, state.epoch))
        model = kwargs["model"].state_dict()
        self.weights = {name: value.clone() for name, value in model.items()}
        if state.global_step == self.stop:
            control.should_training_stop = True


def trainer_of(folder: Path, records: int, callbacks: list[Any], **how: Any) -> Any:  # noqa: ANN401
    kind, dropout = how.pop("kind", _Trainer), how.pop("dropout", 0.0)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), report_to=[], use_cpu=True, disable_tqdm=True,
        **{"learning_rate": 0.05, "lr_scheduler_type": "constant", "save_strategy": "no", **how},
    )  # fmt: skip
    rows = _Rows(records)
    model = _Model(dropout)
    return kind(model, arguments, train_dataset=rows, eval_dataset=rows, callbacks=callbacks)


def trained(folder: Path, records: int, stop: int, callbacks: list[Any], **how: Any) -> Any:  # noqa: ANN401
    observer = _Observer(stop)
    trainer = trainer_of(folder, records, callbacks, **how)
    trainer.add_callback(observer)
    trainer.train()
    assert trainer.args.gradient_accumulation_steps == how.get("gradient_accumulation_steps", 1)
    return trainer, observer


# Batches of an epoch are 4, 5, 7 (its last one short) and 8; a run is stopped after these steps.
@pytest.mark.parametrize(
    ("records", "accumulation", "stops", "how"),
    [
        (16, 2, (1, 3), {"num_train_epochs": 2}),
        (20, 1, (3, 6), {"num_train_epochs": 2}),
        (20, 2, (1,), {"num_train_epochs": 2}),
        (20, 2, (2, 3), {"num_train_epochs": 2}),
        (20, 2, (4,), {"max_steps": 7}),
        (26, 3, (1, 2, 3, 4, 5), {"num_train_epochs": 2}),
        (32, 3, (1,), {"num_train_epochs": 2}),
        (32, 3, (2, 4), {"max_steps": 7}),
        (32, 9, (1,), {"num_train_epochs": 2}),
    ],
)
def test_accumulated_gradients_are_applied_at_the_end_of_a_resumed_epoch(
    records: int, accumulation: int, stops: tuple[int, ...], how: dict[str, int], tmp_path: Path
) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    how = {**how, "gradient_accumulation_steps": accumulation}
    whole, watched = trained(tmp_path, records, 0, [], **how)

    seen, begun, ended = [], [], []
    for stop in (*stops, 0):
        callback = CheckpointCallback(tmp_path / "run", every_steps=100)
        part, observer = trained(tmp_path, records, stop, [callback], **how)
        seen += part.model.seen
        begun += observer.begun
        ended += observer.ended

    assert seen == whole.model.seen
    assert begun == watched.begun
    assert ended == watched.ended
    for name, value in whole.model.state_dict().items():
        assert torch.equal(part.model.state_dict()[name], value), name


@pytest.mark.parametrize("how", [{"num_train_epochs": 2}, {"max_steps": 4}])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_that_has_ended_stays_as_it_is(
    how: dict[str, int], accumulation: int, tmp_path: Path
) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    how = {**how, "gradient_accumulation_steps": accumulation}
    run = tmp_path / "run"
    callbacks = [CheckpointCallback(run, every_steps=100)]
    whole, _ = trained(tmp_path, 20, 0, callbacks, **how)
    again, _ = trained(tmp_path, 20, 0, [CheckpointCallback(run, every_steps=100)], **how)

    assert again.state.global_step == whole.state.global_step
    assert again.state.epoch == whole.state.epoch
    assert [commit.step for commit in ckpt.list(run)] == [whole.state.global_step]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name


class _Processes(_Trainer):
    loader: ClassVar[dict[str, Any]] = {
        **{"num_workers": 1, "mode": "workers"},
        "persistent_workers": True,
    }


# An epoch has five batches: a run stops inside of the first, at its end, and in the second.
@pytest.mark.parametrize("kind", [_Trainer, _Processes])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_resumed_run_draws_and_logs_what_one_at_once_does(
    kind: type[_Trainer], accumulation: int, tmp_path: Path
) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    how = {
        "kind": kind, "gradient_accumulation_steps": accumulation, "num_train_epochs": 2,
        "dropout": 0.5, "logging_steps": 1, "include_num_input_tokens_seen": "all",
        "eval_strategy": "steps", "eval_steps": 2,
    }  # fmt: skip
    whole, watched = trained(tmp_path, 20, 0, [], **how)

    logged = []
    for stop in (2, 3, 5, 0):
        callback = CheckpointCallback(tmp_path / "run", every_steps=100)
        part, observer = trained(tmp_path, 20, stop, [callback], **how)
        logged += observer.logged

    assert logged == watched.logged
    assert part.state.num_input_tokens_seen == whole.state.num_input_tokens_seen
    for name, value in whole.model.state_dict().items():
        assert torch.equal(part.model.state_dict()[name], value), name


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
@pytest.mark.parametrize("stop", [3, 5, 0])
def test_the_last_step_is_saved_before_the_trainer_loads_the_best(
    strategy: str, stop: int, tmp_path: Path
) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    every = {f"{what}_strategy": strategy for what in ("eval", "save")}
    every |= {"eval_steps": 1, "save_steps": 1}
    # The first loss is the best one.
    best = {"load_best_model_at_end": True, "label_names": ["name"], "greater_is_better": True}
    callback = CheckpointCallback(tmp_path / "run", every_steps=100)
    how = {"num_train_epochs": 2, **every, **best}
    ended, last = trained(tmp_path / "a", 20, stop, [callback], **how)
    assert ended.state.best_global_step < ended.state.global_step or strategy == "epoch"

    again = trainer_of(tmp_path / "b", 20, [CheckpointCallback(tmp_path / "run")], **how)
    seen = _Seen()
    again.add_callback(seen)
    again.train()

    for name, value in last.weights.items():
        assert torch.equal(seen.weights[name], value), name


class _Seen(transformers.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
    """The weights with which a training begins."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        if not hasattr(self, "weights"):
            model = kwargs["model"].state_dict()
            self.weights = {name: value.clone() for name, value in model.items()}


def test_two_resumes_at_once_are_refused(tmp_path: Path) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    how = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    callback = CheckpointCallback(tmp_path / "run", every_steps=2)
    trained(tmp_path, 20, 4, [callback], **how)

    again = trainer_of(tmp_path, 20, [CheckpointCallback(tmp_path / "run")], **how)
    with pytest.raises(ValueError, match="resumes from one of its own, at step 3"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    alone = trainer_of(tmp_path, 20, [CheckpointCallback(tmp_path / "run", resume=False)], **how)
    alone.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert len(alone.model.seen) == 7


class _Iterable(_Trainer):
    def get_train_dataloader(self) -> Any:  # noqa: ANN401
        return DataLoader(_Numbers(), batch_size=4)


class _Numbers(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:  # noqa: ANN401
        return iter(_Rows(8))


def test_a_loader_without_a_position_is_refused_before_the_first_step(tmp_path: Path) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    trainer = trainer_of(
        tmp_path, 8, [CheckpointCallback(tmp_path / "run")], kind=_Iterable, max_steps=4
    )
    with pytest.raises(TypeError, match="it is iterable"):
        trainer.train()
    assert not trainer.model.seen


class _Twice(_Trainer):
    batch = 8


def test_an_epoch_of_other_steps_is_refused_if_epochs_say_where_the_run_ends(
    tmp_path: Path,
) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    run = tmp_path / "run"
    trained(tmp_path, 32, 5, [CheckpointCallback(run)], num_train_epochs=2)

    by_epochs = trainer_of(tmp_path, 32, [CheckpointCallback(run)], kind=_Twice, num_train_epochs=2)
    with pytest.raises(ValueError, match="had 8 steps an epoch, and this one has 4"):
        by_epochs.train()
    by_steps = trainer_of(tmp_path, 32, [CheckpointCallback(run)], kind=_Twice, max_steps=11)
    by_steps.train()
    assert [len(batch) for batch in by_steps.model.seen] == [8, 4, 8, 8, 8, 8]
    assert by_steps.state.epoch == 2


class _StopsInside(transformers.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        control.should_training_stop = state.global_step == 1


def test_a_run_that_is_stopped_inside_of_a_step_loses_no_batch(tmp_path: Path) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    how = {"num_train_epochs": 2, "gradient_accumulation_steps": 2}
    whole, _ = trained(tmp_path, 32, 0, [], **how)
    callbacks = [CheckpointCallback(tmp_path / "run", every_steps=1), _StopsInside()]
    first, _ = trained(tmp_path, 32, 0, callbacks, **how)
    again, _ = trained(tmp_path, 32, 0, [CheckpointCallback(tmp_path / "run")], **how)

    assert first.model.seen[:2] + again.model.seen == whole.model.seen


class _Interrupts(transformers.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401
        raise KeyboardInterrupt


def test_a_training_that_was_interrupted_in_a_changed_step_is_not_counted_wrong(
    tmp_path: Path,
) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    how = {"num_train_epochs": 2, "gradient_accumulation_steps": 2}
    whole, _ = trained(tmp_path, 20, 0, [], **how)
    trained(tmp_path, 20, 2, [CheckpointCallback(tmp_path / "run")], **how)
    again = trainer_of(tmp_path, 20, [CheckpointCallback(tmp_path / "run")], **how)
    again.add_callback(_Interrupts)
    with pytest.raises(KeyboardInterrupt):
        again.train()
    again.remove_callback(_Interrupts)

    with pytest.raises(RuntimeError, match=r"call train\(\) once more"):
        again.train()
    again.model.seen.clear()
    again.train()

    assert again.model.seen == whole.model.seen[4:]
    assert again.state.global_step == whole.state.global_step == 6


class _Evaluates(_Trainer):
    last = "short"

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:  # noqa: ANN401
        sampler = Sampler(self.eval_dataset, 4, shuffle=False, last=self.last)  # type: ignore[arg-type]
        return self.accelerator.prepare(DataLoader(self.eval_dataset, batch_sampler=sampler))


class _EvaluatesExactly(_Evaluates):
    last = "exact"


@pytest.mark.parametrize("kind", [_Evaluates, _EvaluatesExactly])
@pytest.mark.parametrize("records", [12, 13, 14])
def test_a_last_batch_of_few_records_counts_as_few_in_an_evaluation(
    records: int, kind: type[_Trainer], tmp_path: Path
) -> None:
    how = {"per_device_eval_batch_size": 4, "label_names": ["name"]}
    ours = trainer_of(tmp_path, records, [], kind=kind, **how).evaluate()
    theirs = trainer_of(tmp_path, records, [], **how).evaluate()

    assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"])


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


class _Scaling(_Trainer):
    """Scales losses as with fp16, which accelerate does on an accelerator only."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu", 4.0, growth_interval=3)


def test_the_scale_of_gradients_goes_on_where_it_was(tmp_path: Path) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    how = {"kind": _Scaling, "num_train_epochs": 3, "max_grad_norm": 0}
    whole, _ = trained(tmp_path, 20, 0, [], **how)

    for stop in (4, 8, 0):
        callback = CheckpointCallback(tmp_path / "run", every_steps=100)
        part, _ = trained(tmp_path, 20, stop, [callback], **how)

    assert whole.accelerator.scaler.get_scale() == 4.0 * 2**5
    assert part.accelerator.scaler.state_dict() == whole.accelerator.scaler.state_dict()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(part.model.state_dict()[name], value), name


def test_an_evaluation_before_the_first_step_draws_nothing_from_a_resumed_run(
    tmp_path: Path,
) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    how = {"eval_on_start": True, "num_train_epochs": 2, "dropout": 0.5}
    whole, _ = trained(tmp_path, 20, 0, [], **how)

    for stop in (2, 5, 0):
        callback = CheckpointCallback(tmp_path / "run", every_steps=100)
        part, _ = trained(tmp_path, 20, stop, [callback], **how)

    for name, value in whole.model.state_dict().items():
        assert torch.equal(part.model.state_dict()[name], value), name


class _HalfBatches(_Trainer):
    batch = 2


def test_a_run_of_smaller_steps_that_would_end_before_its_last_is_refused(tmp_path: Path) -> None:
    from ffrecord.torch.huggingface import CheckpointCallback

    def resumed(stop: int, **how: Any) -> Any:  # noqa: ANN401
        callback = CheckpointCallback(tmp_path / "run", every_steps=100)
        return trained(tmp_path, 20, stop, [callback], **how)

    resumed(3, max_steps=10)  # Twelve records of twenty; four steps of two are left.

    with pytest.raises(ValueError, match="would end at step 7, before max_steps, 10"):
        resumed(0, max_steps=10, kind=_HalfBatches)
    part, _ = resumed(0, max_steps=7, kind=_HalfBatches)
    assert part.state.global_step == 7
