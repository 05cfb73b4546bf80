"""How far loading ahead goes; apart from the threads that do it, whose imports are slow."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReadAhead:
    """How far loading ahead goes."""

    threads: int
    depth: int
    """Items read ahead at the beginning."""
    memory_limit_bytes: int
    """For items that wait for the consumer; one always fits."""
    timeout_s: float
    """To wait for what is asked for."""
