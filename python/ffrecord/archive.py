"""Record files at an object store, or wherever checkpoints are kept: sent and brought back."""

from ffrecord._archive import Mirror, pull, push

__all__ = ["Mirror", "pull", "push"]
