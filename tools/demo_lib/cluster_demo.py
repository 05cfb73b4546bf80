"""The demo on a cluster of five daemons on this machine. `tools/demo --cluster` starts it.

Trains two ranks for two epochs from the file itself. Then again from the cluster, which loses a
node under way; the ranks are killed as well, the cluster loses another node, and the run is resumed
from its checkpoints on what is left. Samples, losses and parameters must be the same to the bit.
The result is in build/demo/cluster.json.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import demo

import ffrecord

NODES = 5
REPLICAS = 2
REPAIR_AFTER_S = 3
LOSE_NODE_AFTER_STEP = 30  # Before the ranks are killed.


@dataclass(frozen=True)
class Node:
    """One daemon of the cluster, as `ffrecord cluster local` tells of it."""

    name: str
    listen: str
    admin: str
    process: int


@contextlib.contextmanager
def cluster(folder: pathlib.Path) -> Iterator[list[Node]]:
    """Run a cluster until the block is left."""
    command = ["ffrecord", "cluster", "local", str(folder), "--nodes", str(NODES)]
    command += ["--replicas", str(REPLICAS), "--repair-after", str(REPAIR_AFTER_S)]
    with (demo.BUILD / "logs" / "cluster.log").open("w+") as log:
        running = subprocess.Popen(command, stdout=log, stdin=subprocess.DEVNULL, stderr=log)
        told = pathlib.Path(log.name)
        try:
            demo.wait_for(
                lambda: "ready: " in told.read_text(), lambda: running.poll() is None, "the cluster"
            )
            found = re.findall(r"(\w+): (\S+), admin port (\S+), process (\d+)", told.read_text())
            yield [
                Node(name, listen, admin, int(process)) for name, listen, admin, process in found
            ]
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(timeout=60)


def is_repaired(nodes: list[Node], lost: list[Node]) -> bool:
    """Tell whether the nodes that are left have replicas of all that the lost ones held."""
    names = {node.name for node in lost}
    for node in nodes:
        if node in lost:
            continue
        facts = json.loads(demo.run("ffrecord", "cluster", "status", node.admin, "--json"))
        slots = sum(one["slots"] for one in facts["nodes"] if one["id"] in names)
        if slots or facts["missing"] or not facts["leased"]:
            return False
    return True


def main() -> int:
    """Run the demo; return the exit code."""
    begin = time.monotonic()
    (demo.BUILD / "logs").mkdir(parents=True, exist_ok=True)
    pictures = demo.pictures()
    path, _ = demo.training_set(demo.pack(pictures))
    topics = len([entry for entry in pictures.iterdir() if entry.is_dir()])

    demo.say("training from the file")
    runs = demo.BUILD / "checkpoints-embedded"
    shutil.rmtree(runs, ignore_errors=True)
    whole = demo.train("cluster-embedded", [str(path), str(path)], topics, runs)

    folder = demo.BUILD / "cluster"
    shutil.rmtree(folder, ignore_errors=True)
    with cluster(folder) as nodes:
        first, second = nodes[1], nodes[3]
        address = "ffrecord://" + ",".join(node.listen for node in nodes)
        dataset = f"{address}/{demo.DATASET}"
        demo.say(f"publishing to {NODES} daemons")
        demo.run("ffrecord", "publish", path, dataset)

        def lose_first() -> None:
            demo.say(f"training from the cluster; {first.name} is killed now")
            os.kill(first.process, signal.SIGKILL)

        killed = demo.train(
            "cluster-killed",
            [dataset, dataset],
            topics,
            f"{address}/runs/demo",
            kill_after=demo.KILL_AFTER_STEP,
            meanwhile=(LOSE_NODE_AFTER_STEP, lose_first),
        )
        demo.say("the ranks were killed; the others copy what the lost node held")
        demo.wait_for(lambda: is_repaired(nodes, [first]), lambda: True, "repair")
        demo.say(f"{second.name} is lost now, with its data; resuming")
        os.kill(second.process, signal.SIGKILL)
        shutil.rmtree(folder / second.name)
        resumed = demo.train(
            "cluster-resumed", [dataset, dataset], topics, f"{address}/runs/demo", resume=True
        )

    found = demo.compare(whole, killed, resumed)
    found |= {"nodes": NODES, "replicas": REPLICAS, "lost": [first.name, second.name]}
    found["seconds"] = time.monotonic() - begin
    (demo.BUILD / "cluster.json").write_text(json.dumps(found, indent=2) + "\n")
    verdict = "the same samples, losses and parameters" if found["exact"] else "DIFFERENT results"
    print(
        f"from the file, and from {NODES} daemons, with {first.name} and {second.name} lost:"
        f" {verdict} over {found['steps']} steps (resumed from step {found['resumed_from_step']});"
        f" see {demo.BUILD / 'cluster.json'}"
    )
    return 0 if found["exact"] else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (demo.Failure, OSError, ffrecord.CorruptionError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(4)
    except KeyboardInterrupt:
        sys.exit(130)
