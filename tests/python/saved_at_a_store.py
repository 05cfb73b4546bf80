"""What the tests of checkpoints at a store share: a state, and what is in the bucket."""

from typing import Any

import numpy as np
import pytest

from object_store import Store


def state(seed: int = 0) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    return {"w": chance.random((300, 7)), "small": {"b": chance.random(5)}, "step": seed}


def run_of(request: pytest.FixtureRequest, store: Store) -> str:
    """An address of its own for each test; the store has no faults."""
    store.serve_all()
    return f"s3://bucket/runs of/{request.node.name}"


def client_of_store() -> Any:  # noqa: ANN401 - what boto3 gives has no type
    import boto3

    return boto3.client("s3", region_name="us-east-1")


def keys_of(run: str) -> list[str]:
    prefix = run.removeprefix("s3://bucket/") + "/"
    found = client_of_store().list_objects_v2(Bucket="bucket", Prefix=prefix)
    return [each["Key"] for each in found.get("Contents", [])]
