"""Storage that gives way to the communication of training.

    ffrecord.runtime.start_pacing()
    ffrecord.runtime.attach(model)

Collectives then signal when they need the network, and saves, prefetch and repair of this process
wait for the gaps between them. Collectives of `ffrecord.distributed` signal without a call.
"""

from typing import TYPE_CHECKING

from ffrecord._base.lazy_names import later
from ffrecord._ffrecord import (
    await_turn,
    is_pacing,
    mark_traffic,
    pacing_counters,
    phase_begin,
    phase_end,
    report_loader_queue,
    start_pacing,
    step_end,
    stop_pacing,
)
from ffrecord.runtime._attaching import Attachment, attach, detach

if TYPE_CHECKING:
    from ffrecord.runtime._interfaces import watch_interfaces

__all__ = [
    "Attachment",
    "attach",
    "await_turn",
    "detach",
    "is_pacing",
    "mark_traffic",
    "pacing_counters",
    "phase_begin",
    "phase_end",
    "report_loader_queue",
    "start_pacing",
    "step_end",
    "stop_pacing",
    "watch_interfaces",
]

__getattr__ = later(__name__, {"watch_interfaces": "_interfaces"})
