"""The error of a rank that did its part, when another did not."""


class PeerError(RuntimeError):
    """Another rank failed; the message says which and why. This rank itself succeeded.

    Attributes:
        kind: the name of the type of the exception there.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        """Store the message and the type of the other rank's error."""
        super().__init__(message)
        self.kind = kind
