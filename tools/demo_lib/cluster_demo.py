"""The demo on a cluster of five daemons on this machine. `tools/demo --cluster` starts it.

Trains two ranks for two epochs from the file itself. Then again from the cluster, which loses a
node under way; the ranks are killed as well, the cluster loses another node, and the run is resumed
from its checkpoints on what is left. Samples, losses and parameters must be the same to the bit.
The result is in build/demo/cluster.json.
"""

import json
import shutil
import signal
import sys
import time

import demo

import ffrecord
from ffrecord._cli.admin import fetch_cluster
from ffrecord._cli.local_cluster import LocalCluster

NODES = 5
REPLICAS = 2
REPAIR_AFTER_S = 3
LOSE_NODE_AFTER_STEP = 30  # Before the ranks are killed.


def wait_until_repaired(cluster: LocalCluster, down: list[str]) -> None:
    """Wait until the nodes that are left have replicas of all that the lost ones held."""
    nodes = [node for node in cluster.nodes if node.name not in down]

    def is_done() -> bool:
        facts = [fetch_cluster(node.admin, 10.0) for node in nodes]
        return all(
            one["leased"] and not one["missing"] and not one["moving"] and is_counted_out(one, down)
            for one in facts
        )

    demo.wait_for(is_done, lambda: True, "repair")


def is_counted_out(facts: dict[str, object], down: list[str]) -> bool:
    """Tell whether no slots are on the lost nodes any more."""
    nodes = facts["nodes"]
    assert isinstance(nodes, list)
    return not any(node["slots"] for node in nodes if node["id"] in down)


def main() -> int:
    """Run the demo; return the exit code."""
    begin = time.monotonic()
    (demo.BUILD / "logs").mkdir(parents=True, exist_ok=True)
    folder = demo.pictures()
    path, _ = demo.training_set(demo.pack(folder))
    topics = len([entry for entry in folder.iterdir() if entry.is_dir()])

    demo.say("training from the file")
    runs = demo.BUILD / "checkpoints-embedded"
    shutil.rmtree(runs, ignore_errors=True)
    whole = demo.train("cluster-embedded", [str(path), str(path)], topics, runs)

    shutil.rmtree(demo.BUILD / "cluster", ignore_errors=True)
    running = LocalCluster(demo.BUILD / "cluster", NODES, REPLICAS, repair_after_s=REPAIR_AFTER_S)
    with running as cluster:
        first, second = cluster.nodes[1].name, cluster.nodes[3].name
        dataset = f"{cluster.address}/{demo.DATASET}"
        demo.say(f"publishing to {NODES} daemons")
        demo.run("ffrecord", "publish", path, dataset)

        def lose_first() -> None:
            demo.say(f"training from the cluster; {first} is killed now")
            cluster.stop(first, signal.SIGKILL)

        killed = demo.train(
            "cluster-killed",
            [dataset, dataset],
            topics,
            f"{cluster.address}/runs/demo",
            kill_after=demo.KILL_AFTER_STEP,
            meanwhile=(LOSE_NODE_AFTER_STEP, lose_first),
        )
        wait_until_repaired(cluster, [first])
        demo.say(f"the ranks were killed; {second} is lost now, with its data")
        cluster.stop(second, signal.SIGKILL)
        shutil.rmtree(cluster.folder / second)
        resumed = demo.train(
            "cluster-resumed",
            [dataset, dataset],
            topics,
            f"{cluster.address}/runs/demo",
            resume=True,
        )
        wait_until_repaired(cluster, [first, second])

    found = demo.compare(whole, killed, resumed)
    found |= {"nodes": NODES, "replicas": REPLICAS, "lost": [first, second]}
    found["seconds"] = time.monotonic() - begin
    (demo.BUILD / "cluster.json").write_text(json.dumps(found, indent=2) + "\n")
    verdict = "the same samples, losses and parameters" if found["exact"] else "DIFFERENT results"
    print(
        f"from the file, and from {NODES} daemons of which {first} and {second} were lost:"
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
