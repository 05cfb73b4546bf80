"""What is closed at the end of a `with` block, however that ends."""

from types import TracebackType
from typing import Self


class Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Let go of what is held. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
