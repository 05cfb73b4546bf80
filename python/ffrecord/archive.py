"""Upload and download record files, at an object store or another target of checkpoints."""

from ffrecord._store.archive import Mirror, pull, push

__all__ = ["Mirror", "pull", "push"]
