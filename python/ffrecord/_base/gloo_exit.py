"""The end of a program whose ranks talk over Gloo.

Threads of torch's Gloo groups drop the tensors of an operation after they have told the program
that it is done, and need Python's lock for that. DDP keeps these threads alive beyond
`destroy_process_group()`. One that comes for the lock when Python is on its way out cannot get it
any more and aborts the program: "terminate called without an active exception", after the last
step, and torchrun tells a failure (seen with torch 2.13 and Python 3.11, in three runs of 100 on a
busy machine).
"""

import atexit

from ffrecord import _ffrecord

_GLOO_THREAD = "pt_gloo_runloop"
_PATIENCE_S = 2.0


@atexit.register
def _let_gloo_finish() -> None:
    _ffrecord.wait_for_idle_threads(_GLOO_THREAD, _PATIENCE_S)
