"""Record files as a `tf.data.Dataset`."""

from ffrecord._integrations.tensorflow import Batches, Spec

__all__ = ["Batches", "Spec"]

for _each in (Batches, Spec):
    _each.__module__ = __name__  # Messages and pickles name the public module.
