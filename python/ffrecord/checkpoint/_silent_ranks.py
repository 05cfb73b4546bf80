"""Which ranks of a process group did not answer, found out after a collective has failed.

Only imported where torch is.
"""

import threading
from collections import Counter
from typing import Any

import torch.distributed as dist

from ffrecord._base import clock

# How long ranks that failed too are waited for, since the last one was heard of.
_QUIET_S = 2.0
# Of all; the store may be in a process that is stopped itself.
_LIMIT_S = 10.0

# Failures of this process in each process group: the ranks that take part in the same one count
# alike.
_failures: Counter[str] = Counter()


def silent_ranks(process_group: dist.ProcessGroup | None) -> list[int] | None:
    """The ranks that do not say, through the group's store, that the collective failed for them.

    Costs nothing until a collective has failed. All ranks whose collective failed call it.

    Returns:
        Ranks within the group; None if that cannot be found out.
    """
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    group: Any = process_group or dist.group.WORLD
    name = str(getattr(group, "group_name", ""))
    _failures[name] += 1
    prefix = f"ffrecord/failure/{name}/{_failures[name]}"
    heard: set[int] = {rank}
    is_told = threading.Event()

    def ask() -> None:
        try:
            store: Any = dist.distributed_c10d._get_default_store()  # type: ignore[no-untyped-call, unused-ignore]
            store.set(f"{prefix}/{rank}", b"here")
            last = clock.now()
            while clock.now() - last < _QUIET_S and len(heard) < size:
                for other in set(range(size)) - heard:
                    if store.check([f"{prefix}/{other}"]):
                        heard.add(other)
                        last = clock.now()
                clock.sleep(0.05)
            is_told.set()
        except Exception:  # The error that was there before says more.
            return

    # A store does not limit every call. A daemon: nothing waits for it.
    asking = threading.Thread(target=ask, name="ffrecord-silent", daemon=True)
    asking.start()
    clock.join(asking, _LIMIT_S)
    return sorted(set(range(size)) - heard) if is_told.is_set() else None
