"""Goal: with Ray Train, workers see each record once an epoch, and resume at the next, at any size.

Method: the tutorial's own script, in a cluster on this machine; and what users forget.
"""

import os
import subprocess
import sys
from pathlib import Path

from tutorial import STEPS, Run, check_exact, framework, read_printed, replace_in, write_script

framework("ray.train")
# Nothing is reported to anybody, and no token is left in the home folder. Workers may take their
# time to start on a busy machine: after a minute Ray would start others.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
}


def script_in(folder: Path) -> Path:
    script = write_script("ray.md", "train.py", folder)
    replace_in(script, "ray.init(", 'ray.init(_node_ip_address="127.0.0.1", ')
    return script


def train(script: Path, world: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, str(world), *arguments],
        cwd=script.parent,
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def steps(script: Path, world: int, *arguments: str) -> list[tuple[int, list[int]]]:
    done = train(script, world, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return Run(read_printed(script.parent, world)).steps()


def test_a_run_stopped_in_an_epoch_goes_on_at_the_next_record(tmp_path: Path) -> None:
    script = script_in(tmp_path)
    before = steps(script, 2, "7")
    assert len(before) == 7

    for world in (2, 1, 3):
        check_exact(before + steps(script, world, "0", "saved"))


def test_workers_started_again_go_on_at_the_last_checkpoint(tmp_path: Path) -> None:
    script = script_in(tmp_path)
    replace_in(script, '{rank}", "w")', '{rank}", "a")')
    stop = '                if step == config["stop_at"]:\n'
    died = """
                if rank == 1 and step == 5 and not os.path.exists(config["printed"]):
                    printed.flush()
                    open(config["printed"], "w").close()
                    __import__("time").sleep(5)  # Ray learns of the checkpoint, if it is quick.
                    os._exit(1)
                if step % 3 == 0:
"""
    replace_in(script, stop, died)
    replace_in(script, "                    return\n", "")

    done = train(script, 2, "0")

    assert done.returncode == 0, done.stdout + done.stderr
    by_rank = read_printed(tmp_path, 2)
    again = len(by_rank[1]) - 5
    saved = 2 * STEPS - again
    assert saved in (3, 0)  # Of the last checkpoint that Ray knew, if any.
    before = Run([steps[:-again][:saved] for steps in by_rank]).steps()
    check_exact(before + Run([steps[-again:] for steps in by_rank]).steps())


def test_torchs_loader_with_our_sampler_is_told_what_to_write(tmp_path: Path) -> None:
    script = script_in(tmp_path)
    replace_in(script, "import DataLoader, Dataset, Sampler", "import Dataset, Sampler, collate")
    replace_in(script, "loader = DataLoader(", "loader = torch.utils.data.DataLoader(")
    replace_in(script, 'last="short")', 'last="short"), collate_fn=collate')

    done = train(script, 2, "0")

    assert done.returncode != 0
    assert "Use ffrecord.torch.DataLoader(dataset, batch_sampler=sampler)" in done.stderr
