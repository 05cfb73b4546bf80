"""Record files as a `tf.data.Dataset`."""

from ffrecord._integrations.tensorflow import Batches, Spec

__all__ = ["Batches", "Spec"]
