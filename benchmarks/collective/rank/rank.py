"""One rank of benchmarks/run collective: reads orders, a JSON object a line, and answers each.

Usage: rank.py HOST, with the variables of torch.distributed; HOST is this rank's own address.
"""

import hashlib
import json
import sys
import time

import torch
import torch.distributed as dist

from ffrecord.torch import Group


def main() -> None:
    """Join both groups; reduce until the orders end."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = Group(listen_host=sys.argv[1])

    def ours(tensor: torch.Tensor) -> None:
        group.all_reduce(tensor, "sum").wait()

    def gloo(tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    arms = {"ours": ours, "gloo": gloo}
    tensors: dict[int, torch.Tensor] = {}
    for line in sys.stdin:
        order = json.loads(line)
        size_bytes, reduce = order["size_bytes"], arms[order["arm"]]
        tensor = tensors.setdefault(size_bytes, torch.empty(size_bytes // 4))
        tensor.fill_(dist.get_rank() + 1)
        reduce(tensor)  # Memory is touched and buffers are there from here on.
        digest = hashlib.sha256(tensor.numpy()).hexdigest()
        seconds = []
        cpu_before = time.process_time()
        for _ in range(order["repeats"]):
            tensor.fill_(1)
            dist.barrier()
            before = time.perf_counter()
            reduce(tensor)
            seconds.append(time.perf_counter() - before)
        answer = {
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu_before,
            "digest": digest,
        }
        print(json.dumps(answer), flush=True)
    group.close()


if __name__ == "__main__":
    main()
