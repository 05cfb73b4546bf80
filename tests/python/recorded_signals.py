"""Signals that a test looks at, in the place of the pacer."""

# ruff: noqa: D102 - those of the pacer

import threading


class Recorded:
    """Keeps all signals in their order. Thread-safe."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    def phase_begin(self, kind: str, size_bytes: int) -> None:
        with self._lock:
            self.events.append((f"begin {kind}", size_bytes))

    def phase_end(self, kind: str) -> None:
        with self._lock:
            self.events.append((f"end {kind}", 0))

    def step_end(self) -> None:
        with self._lock:
            self.events.append(("step", 0))

    def names(self) -> list[str]:
        """All signals without their sizes."""
        with self._lock:
            return [name for name, _ in self.events]

    def count(self, name: str) -> int:
        return self.names().count(name)

    def sizes(self) -> list[int]:
        """Of all phases, in bytes."""
        with self._lock:
            return [size for name, size in self.events if name.startswith("begin")]

    def depths(self) -> list[int]:
        """How many phases were open after each signal."""
        found, depth = [], 0
        for name in self.names():
            depth += name.startswith("begin") - name.startswith("end")
            found.append(depth)
        return found
