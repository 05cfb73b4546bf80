"""Record files in Ray Data: `read` makes a dataset of them."""

from ffrecord._integrations.ray import RecordSource, read

__all__ = ["RecordSource", "read"]
