"""Whether an object is pickled for a process that is being started."""

import sys


def is_spawning() -> bool:
    """Whether this thread pickles what a new process of `multiprocessing` begins with.

    A program that has not imported `multiprocessing` starts none: its import takes 5 ms, which is
    spared to all who read without it.
    """
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None
