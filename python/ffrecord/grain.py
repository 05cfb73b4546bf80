"""Record files as a data source of Grain, the loader of JAX."""

from ffrecord._integrations.grain import BatchSource, DataSource

__all__ = ["BatchSource", "DataSource"]
