"""Weights out of checkpoints: read by name and slice, exported for other programs, and published.

import ffrecord.weights

weights = ffrecord.weights.open("runs/x", prefix="model")
rows = weights["layers.0.mlp.weight"][rank * 512 : (rank + 1) * 512]   # Reads only these.
weights.fill({"lm_head.weight": parameter})                            # No second copy.
ffrecord.weights.export("runs/x", "out/", prefix="model")              # safetensors, sharded.

publisher = ffrecord.weights.Publisher("/dev/shm/policy")              # In the trainer.
publisher.publish(version, {"model": model.state_dict()})
subscriber = ffrecord.weights.Subscriber("/dev/shm/policy", prefix="model")  # In a server.
version = subscriber.pull({"lm_head.weight": parameter})
"""

from ffrecord.weights._export import Export, export
from ffrecord.weights._reading import Weight, Weights, open
from ffrecord.weights._versions import Publisher, Subscriber, WeightPublisher, WeightSource

__all__ = [
    "Export",
    "Publisher",
    "Subscriber",
    "Weight",
    "WeightPublisher",
    "WeightSource",
    "Weights",
    "export",
    "open",
]

for _each in (Export, Publisher, Subscriber, Weight, Weights, WeightPublisher, WeightSource):
    _each.__module__ = __name__  # Messages and pickles name the public module.
