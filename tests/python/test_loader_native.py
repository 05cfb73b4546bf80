"""Goal: columns that native threads decode are those of other loaders: bits, order, damage, resume.

Method: loaders with threads over pictures and arrays beside a loader without, some values damaged
or of a kind that needs Pillow. Only native threads count to the stage `handover`.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import ffrecord
from ffrecord import _ffrecord
from ffrecord.decode import CenterCrop, Decoder, Field, Image, Npy, RandomCrop, Text
from ffrecord.torch import DataLoader, Dataset, Sampler

Pillow = pytest.importorskip("PIL.Image", reason="Pillow makes the pictures")
pytestmark = pytest.mark.skipif(not _ffrecord.has_jpeg, reason="built without libjpeg-turbo")

COUNT, BATCH = 40, 8
AUGMENTED = Image(24, crop=RandomCrop(), flip=0.5, dtype="float32", layout="NCHW", std=0.3)
WHOLE = Image()
MEANS = Npy("f4", (2, 3))
THREADS: dict[str, Any] = {"mode": "threads", "num_workers": 2}


def picture(i: int, form: str = "JPEG") -> bytes:
    generator = np.random.default_rng(i)
    pixels = generator.integers(0, 256, (20 + i % 5, 30 + i % 7, 3), np.uint8)
    out = io.BytesIO()
    Pillow.fromarray(pixels).save(out, form)
    return out.getvalue()


def array(i: int) -> bytes:
    out = io.BytesIO()
    np.save(out, np.full((2, 3), i, "<f4"))
    return out.getvalue()


def written(path: Path, **values: dict[int, bytes]) -> Path:
    """A file of labels, pictures and arrays; `values` replace some of a column."""
    schema = {"label": "i64", "image": "bytes", "means": "bytes"}
    with ffrecord.Writer(path, schema) as writer:
        for i in range(COUNT):
            sample: dict[str, Any] = {"label": i, "image": picture(i), "means": array(i)}
            for name, others in values.items():
                sample[name] = others.get(i, sample[name])
            writer.write(sample)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("native") / "data.ffr")


def loader_of(dataset: Dataset, seed: int = 5, **options: Any) -> DataLoader:  # noqa: ANN401
    return DataLoader(dataset, batch_sampler=Sampler(dataset, BATCH, seed), **options)


def is_native(loader: DataLoader) -> bool:
    return bool(loader.stats()["stages"]["handover"] > 0)


def assert_same(found: Any, wanted: Any) -> None:  # noqa: ANN401 - as collate makes them
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for name, values in wanted.items():
            assert_same(found[name], values)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)


def assert_same_epochs(dataset: Dataset, native: bool = True, epochs: int = 2) -> DataLoader:
    """Two epochs by threads are those without; returns the loader with threads."""
    threads, inline = loader_of(dataset, **THREADS), loader_of(dataset)
    for _ in range(epochs):
        for found, wanted in zip(threads, inline, strict=True):
            assert_same(found, wanted)
    assert is_native(threads) == native
    threads.close()
    return threads


@pytest.mark.parametrize(
    ("decode", "columns"),
    [
        ({"image": AUGMENTED, "means": MEANS}, None),
        ({"image": WHOLE, "means": MEANS}, ["means", "image"]),
        ({"image": Image(16, crop=CenterCrop(0.9), channels=1)}, ["label", "image", "label"]),
        ({"image": AUGMENTED}, ["image", "label"]),
        ({"image": AUGMENTED, "means": MEANS, "label": Text()}, ["means"]),
    ],
)
def test_columns_are_decoded_to_the_bit(path: Path, decode: Any, columns: Any) -> None:  # noqa: ANN401
    loader = assert_same_epochs(Dataset(path, decode=decode, columns=columns))
    assert loader.stats()["stages"]["decode"] > 0


def test_records_that_are_just_bytes_are_decoded(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "plain.ffr") as writer:
        for i in range(COUNT):
            writer.write(picture(i))
    assert_same_epochs(Dataset(tmp_path / "plain.ffr", decode=AUGMENTED))
    assert_same_epochs(Dataset(tmp_path / "plain.ffr", decode=WHOLE))


def test_chance_is_that_of_the_place_in_the_stream_at_every_world_size(path: Path) -> None:
    dataset = Dataset(path, decode={"image": AUGMENTED}, columns=["image"])
    whole = [batch["image"] for batch in loader_of(dataset)]
    for world_size in (2, 4):
        ranks = [
            DataLoader(
                dataset,
                batch_sampler=Sampler(dataset, BATCH, 5, rank=rank, world_size=world_size),
                **THREADS,
            )
            for rank in range(world_size)
        ]
        for batch, *shares in zip(whole, *ranks, strict=True):
            assert torch.equal(batch, torch.cat([share["image"] for share in shares]))
    resumed = loader_of(dataset, seed=0, **THREADS)
    before = loader_of(dataset, **THREADS)
    batches = iter(before)
    next(batches), next(batches)
    resumed.load_state_dict(before.state_dict())
    for found, wanted in zip(resumed, whole[2:], strict=True):
        assert torch.equal(found["image"], wanted)


def test_a_padded_step_has_the_chance_of_its_places(path: Path) -> None:
    dataset = Dataset(path, decode={"image": AUGMENTED}, columns=["image"])
    for last in ("pad", "short"):
        loaders = [
            DataLoader(dataset, batch_sampler=Sampler(dataset, 16, 5, last=last), **options)  # type: ignore[arg-type]
            for options in (THREADS, {})
        ]
        for found, wanted in zip(*loaders, strict=True):
            assert_same(found, wanted)


@pytest.mark.parametrize("on_corrupt", ["skip", "replace", "raise"])
@pytest.mark.parametrize("column", ["image", "means"])
def test_a_value_that_cannot_be_decoded_follows_the_policy(
    tmp_path: Path,
    on_corrupt: Any,  # noqa: ANN401
    column: str,
) -> None:
    bad = {"image": picture(13)[:200], "means": array(13)[:-1]}[column]
    path = written(tmp_path / "bad.ffr", **{column: {13: bad}})
    dataset = Dataset(path, decode={"image": AUGMENTED, "means": MEANS}, on_corrupt=on_corrupt)
    if on_corrupt == "raise":
        labels = [batch["label"] for batch in loader_of(Dataset(path, columns=["label"]))]
        good = next(number for number, batch in enumerate(labels) if 13 in batch)
        batches = iter(loader_of(dataset, **THREADS))
        for _ in range(good):
            next(batches)
        with pytest.raises(ffrecord.CorruptionError, match=f"record 13 .*column '{column}'"):
            next(batches)
        return
    loader = assert_same_epochs(dataset)
    assert loader.stats()["damaged"] == 1


def test_a_picture_that_needs_pillow_among_others_is_decoded_too(tmp_path: Path) -> None:
    found = written(tmp_path / "one.ffr", image={13: picture(13, "PNG")})
    assert_same_epochs(Dataset(found, decode={"image": AUGMENTED, "means": MEANS}))


def test_pictures_that_all_need_pillow_are_left_to_threads_that_have_it(tmp_path: Path) -> None:
    found = written(tmp_path / "all.ffr", image={i: picture(i, "PNG") for i in range(COUNT)})
    dataset = Dataset(found, decode={"image": AUGMENTED, "means": MEANS})
    loader = assert_same_epochs(dataset)
    before = loader.stats()["stages"]["handover"]

    for found_batch, wanted in zip(loader, loader_of_epoch(dataset, 2), strict=True):
        assert_same(found_batch, wanted)

    assert loader.stats()["stages"]["handover"] == before


def loader_of_epoch(dataset: Dataset, epoch: int) -> DataLoader:
    loader = loader_of(dataset)
    loader.batch_sampler.set_epoch(epoch)
    return loader


class Inverted(Image):
    """An image decoder of a user's own."""

    def decode(
        self, field: Field
    ) -> tuple[npt.NDArray[Any] | list[npt.NDArray[Any]], dict[int, str]]:
        """See `Decoder`."""
        values, wrong = super().decode(field)
        return 255 - np.asarray(values), wrong


class Sizes(Decoder):
    """How many bytes there are."""

    def decode(self, field: Field) -> tuple[npt.NDArray[Any], dict[int, str]]:
        """See `Decoder`."""
        return field.sizes, {}


@pytest.mark.parametrize("decoder", [Inverted(16), Sizes()])
def test_decoders_of_a_users_own_run_in_python(path: Path, decoder: Decoder) -> None:
    dataset = Dataset(path, decode={"image": decoder}, columns=["label", "image"])
    assert_same_epochs(dataset, native=False)


def test_a_decoder_or_transform_that_is_set_in_mid_epoch_counts_from_the_next_batch(
    path: Path,
) -> None:
    dataset = Dataset(path, decode={"image": Image(8)}, columns=["image"])
    changes: list[tuple[str, Any, int]] = [
        ("decode", {"image": Image(12)}, 12),
        ("transform", lambda sample: sample["image"][:5], 5),
    ]
    for name, value, side in changes:
        loader = loader_of(dataset, **THREADS)
        batches = iter(loader)
        next(batches)
        setattr(dataset, name, value)
        found = next(batches)
        assert (found["image"] if isinstance(found, dict) else found).shape[1] == side
        loader.close()


def test_a_loader_is_closed_and_left_while_pictures_are_decoded(tmp_path: Path) -> None:
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (1200, 1600, 3), np.uint8)
    Pillow.fromarray(pixels).save(out, "JPEG", quality=95)
    large = {i: out.getvalue() for i in range(COUNT)}
    found = written(tmp_path / "large.ffr", image=large)
    dataset = Dataset(found, decode={"image": AUGMENTED}, columns=["image"])
    for turn in range(6):
        loader = loader_of(dataset, **THREADS)
        batches = iter(loader)
        if turn % 2:
            next(batches)
        if turn < 3:
            loader.close()
        del batches, loader


def test_columns_that_are_set_between_epochs_count_from_the_next_one(path: Path) -> None:
    dataset = Dataset(path, columns=["label", "means"], decode={"means": MEANS})
    loader = loader_of(dataset, **THREADS)
    assert [list(batch) for batch in loader] == [["label", "means"]] * (COUNT // BATCH)
    dataset.columns = ("label",)
    assert [list(batch) for batch in loader] == [["label"]] * (COUNT // BATCH)
    loader.close()


def test_a_state_of_batches_that_came_out_of_order_goes_on(path: Path) -> None:
    state = loader_of(Dataset(path, columns=["label"])).state_dict()
    state |= {"position": BATCH, "ahead": {"step": BATCH, "positions": [3 * BATCH]}}
    labels = []
    for options in ({}, THREADS):
        loader = loader_of(Dataset(path, columns=["label"]), **options)
        loader.load_state_dict(state)
        labels.append([batch["label"].tolist() for batch in loader])
        loader.close()
    assert labels[0] == labels[1]
    assert len(labels[0]) == COUNT // BATCH - 2
