"""When the state of a save of `torch.distributed.checkpoint` was taken.

`dcp.async_save` copies the state, and a thread of torch's plans and writes it later. That state
does not go on from a step that the process loads meanwhile.
"""

import threading

from ffrecord import _ffrecord

_lock = threading.Lock()
_turn = 0  # The turn of the last copy, until its save begins.


def note_copy() -> None:
    """A state is copied now, for a save that begins later in another thread."""
    global _turn
    with _lock:
        _turn = _ffrecord.take_turn()


def turn_of_save() -> int:
    """The turn of the save that begins now: that of its copy, or the next one."""
    global _turn
    with _lock:
        if _turn and threading.current_thread() is not threading.main_thread():
            turn, _turn = _turn, 0
            return turn
    return _ffrecord.take_turn()
