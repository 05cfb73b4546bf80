"""A dataset is published, trained on, checkpointed and resumed, all over RDMA.

    demo.py HOST:PORT TRAINED

The model is a small one of two layers, trained with momentum by NumPy: what is shown is where its
bytes come from and go to. A first process is killed between two checkpoints, another goes on from
the newer one to the end, and its model must be equal, bit for bit, to that of a process which was
never killed, read a local file, and saved nothing. Then the file TRAINED is made: whoever serves
cuts himself off, and readers must say that he is gone.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np

import ffrecord
import ffrecord.checkpoint as ckpt
from ffrecord import _ffrecord

SAMPLES, FEATURES, HIDDEN, BATCH = 2_048, 255, 64, 64
STEPS, SAVE_EVERY, KILLED_AT = 60, 20, 47  # An epoch is 32 steps.
SEED = 3
LOCAL = pathlib.Path("/tmp/train.ffr")


def make_samples() -> None:
    """Write records of 1 KiB: features and what they add up to, as float32."""
    random = np.random.default_rng(SEED)
    weights = random.normal(size=FEATURES)
    with ffrecord.Writer(LOCAL) as writer:
        for _ in range(SAMPLES):
            features = random.normal(size=FEATURES)
            target = np.tanh(features @ weights / 8)
            writer.write(np.append(features, target).astype(np.float32).tobytes())


def start() -> dict[str, Any]:
    """Return what a run begins with."""
    random = np.random.default_rng(SEED + 1)
    model = {
        "first": random.normal(size=(FEATURES, HIDDEN)).astype(np.float32) / 16,
        "second": random.normal(size=(HIDDEN, 1)).astype(np.float32) / 8,
    }
    momentum = {name: np.zeros_like(values) for name, values in model.items()}
    return {"model": model, "momentum": momentum, "step": 0, "losses": []}


def train_step(state: dict[str, Any], batch: np.ndarray) -> None:
    """Go one step down."""
    features, targets = batch[:, :FEATURES], batch[:, FEATURES:]
    model = state["model"]
    hidden = np.tanh(features @ model["first"])
    miss = hidden @ model["second"] - targets
    state["losses"].append(float((miss * miss).mean()))
    gradients = {
        "second": hidden.T @ miss / BATCH,
        "first": features.T @ (miss @ model["second"].T * (1 - hidden * hidden)) / BATCH,
    }
    for name, gradient in gradients.items():
        state["momentum"][name] = 0.9 * state["momentum"][name] + gradient
        model[name] -= np.float32(0.1) * state["momentum"][name]
    state["step"] += 1


def train(dataset: str, run: str | None, killed_at: int | None) -> dict[str, Any]:
    """Train to the end, from the newest checkpoint of `run`; killed before step `killed_at`."""
    state = start()
    if run and ckpt.latest(run):
        loaded: Any = ckpt.load(run)
        state = loaded
        print(f"resumed at step {state['step']}", flush=True)
    with ffrecord.open(dataset) as reader:
        while state["step"] < STEPS:
            if state["step"] == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            epoch, position = divmod(state["step"] * BATCH, SAMPLES)
            order = np.random.default_rng((SEED, epoch)).permutation(SAMPLES)
            records = reader.read(order[position : position + BATCH])
            train_step(state, np.stack([np.frombuffer(record, np.float32) for record in records]))
            if run and state["step"] % SAVE_EVERY == 0:
                ckpt.save(run, state["step"], state)
    return state


def read_until_gone(dataset: str) -> None:
    """Read on, until the daemon is found to be gone; a reader that waits in vain fails the demo."""
    with ffrecord.open(dataset, timeout_s=20.0) as reader:
        begun = time.monotonic()
        try:
            while True:
                begun = time.monotonic()
                reader.read(range(BATCH))
        except ffrecord.UnavailableError as error:
            print(f"cut off: {error}, after {time.monotonic() - begun:.0f} s of 20")


def main() -> int:
    """Run the demo, or one of its processes."""
    server, trained = f"ffrecord://{sys.argv[1]}", sys.argv[2]
    dataset, run = f"{server}/train?transport=rdma", f"{server}/runs/demo?transport=rdma"
    if trained == "train":
        train(dataset, run, KILLED_AT)
        return 1  # It was to be killed.

    make_samples()
    print("link:", _ffrecord.probe_daemon(f"{server}/?transport=rdma")[:2], flush=True)
    ffrecord.publish(LOCAL, dataset)
    killed = subprocess.run([sys.executable, __file__, sys.argv[1], "train"], check=False)
    assert killed.returncode == -signal.SIGKILL, killed
    steps = [commit.step for commit in ckpt.list(run)]
    print(f"killed before step {KILLED_AT}; checkpoints of steps {steps}", flush=True)
    assert steps == [20, 40], steps

    resumed = train(dataset, run, None)
    assert ckpt.verify(run) == []
    unbroken = train(str(LOCAL), None, None)

    assert resumed["losses"] == unbroken["losses"]
    for name, values in unbroken["model"].items():
        assert np.array_equal(resumed["model"][name], values), name
    losses = unbroken["losses"]
    print(f"loss {losses[0]:.3f} at the first step, {losses[-1]:.3f} at the last")
    assert losses[-1] < losses[0] / 2
    print("the run that was killed and resumed is equal to the unbroken one, bit for bit")
    sys.stdout.flush()
    pathlib.Path(trained).touch()
    read_until_gone(dataset)
    return 0


if __name__ == "__main__":
    sys.exit(main())
