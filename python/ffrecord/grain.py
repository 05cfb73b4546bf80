"""Record files as a data source of Grain, the loader of JAX."""

from ffrecord._integrations.grain import BatchSource, DataSource

__all__ = ["BatchSource", "DataSource"]

for _each in (BatchSource, DataSource):
    _each.__module__ = __name__  # Messages and pickles name the public module.
