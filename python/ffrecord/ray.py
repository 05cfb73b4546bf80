"""Record files in Ray Data: `read` makes a dataset of them, and `RecordSink` writes one."""

from ffrecord._integrations.ray import RecordSource, read
from ffrecord._integrations.ray_sink import RecordSink

__all__ = ["RecordSink", "RecordSource", "read"]

for _each in (RecordSink, RecordSource, read):
    _each.__module__ = __name__  # Messages and pickles name the public module.
