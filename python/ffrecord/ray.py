"""Record files in Ray Data: `read` makes a dataset of them."""

from ffrecord._integrations.ray import RecordSource, read

__all__ = ["RecordSource", "read"]

for _each in (RecordSource, read):
    _each.__module__ = __name__  # Messages and pickles name the public module.
