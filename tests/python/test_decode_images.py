"""Goal: pictures come out as Pillow makes them, the same under every engine; bad ones are counted.

Method: smooth and noisy pictures, encoded by Pillow in every way that it can, decoded by both.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ffrecord
from ffrecord import _ffrecord
from ffrecord.decode import CenterCrop, Image, RandomCrop

Pillow = pytest.importorskip("PIL.Image", reason="Pillow makes the pictures")
ImageOps = pytest.importorskip("PIL.ImageOps")
pytestmark = pytest.mark.skipif(not _ffrecord.has_jpeg, reason="built without libjpeg-turbo")

Pixels = npt.NDArray[np.uint8]


def scene(width: int, height: int, seed: int = 0) -> Any:  # noqa: ANN401 - Pillow's own
    """A picture with edges, slopes and a little noise."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [128 + 90 * np.sin(x / (7 + 3 * c) + seed) * np.cos(y / (5 + 2 * c)) for c in range(3)]
    pixels = np.stack(waves, axis=-1) + generator.normal(0, 4, (height, width, 3))
    pixels[height // 3 : height // 2, width // 4 : width // 2] = (250, 20, 60)
    return Pillow.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def encoded(picture: Any, form: str = "JPEG", **options: Any) -> bytes:  # noqa: ANN401
    out = io.BytesIO()
    picture.save(out, form, **options)
    return out.getvalue()


def reader_of(folder: Path, records: list[bytes]) -> ffrecord.Reader:
    """A file of records that are just bytes."""
    with ffrecord.Writer(folder / "pictures.ffr", replace=True) as writer:
        for record in records:
            writer.write(record)
    return ffrecord.open(folder / "pictures.ffr")


def decoded(folder: Path, records: list[bytes], decoder: Image) -> Any:  # noqa: ANN401
    return reader_of(folder, records).read(range(len(records)), decode=decoder).whole


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_is_what_pillow_makes_of_it(
    tmp_path: Path, subsampling: str, progressive: bool
) -> None:
    sizes = [(1, 1), (7, 5), (16, 16), (201, 133)]
    records = [
        encoded(scene(*size), quality=90, subsampling=subsampling, progressive=progressive)
        for size in sizes
    ]

    pictures = decoded(tmp_path, records, Image())

    for record, picture in zip(records, pictures, strict=True):
        np.testing.assert_array_equal(picture, np.asarray(Pillow.open(io.BytesIO(record))))


def test_a_crop_is_cut_out_of_the_whole_to_the_bit(tmp_path: Path) -> None:
    # A crop of just the size that is wanted is not resized: any seam at the edges of blocks shows.
    record = encoded(scene(257, 191), quality=85, subsampling="4:2:0")
    whole = np.asarray(Pillow.open(io.BytesIO(record)))
    for height, width in [(1, 1), (17, 33), (64, 100), (150, 200), (190, 31), (191, 257)]:
        share = min(257, 191 * width / height)
        crop = CenterCrop(width / share)
        y, x = (191 - height) // 2, (257 - width) // 2

        (picture,) = decoded(tmp_path, [record], Image((height, width), crop=crop))

        np.testing.assert_array_equal(picture, whole[y : y + height, x : x + width])


@pytest.mark.parametrize("size", [(224, 224), (50, 80), (300, 31)])
def test_resizing_matches_pillows_bilinear_filter(tmp_path: Path, size: tuple[int, int]) -> None:
    height, width = size
    pictures = [scene(301, 260, 1), scene(90, 77, 2), scene(640, 480, 3)]
    lossless = [encoded(picture, "PNG") for picture in pictures]

    made = decoded(tmp_path, lossless, Image(size))

    for picture, found in zip(pictures, made, strict=True):
        wanted = np.asarray(picture.resize((width, height), Pillow.Resampling.BILINEAR))
        assert np.abs(found.astype(int) - wanted).max() <= 1


def test_decoding_at_a_smaller_scale_stays_near_the_full_one(tmp_path: Path) -> None:
    records = [encoded(scene(1000, 800, seed), quality=92) for seed in range(3)]
    for side in (100, 130, 224, 400):
        made = decoded(tmp_path, records, Image(side))

        for record, found in zip(records, made, strict=True):
            whole = Pillow.open(io.BytesIO(record))
            wanted = np.asarray(whole.resize((side, side), Pillow.Resampling.BILINEAR))
            assert np.abs(found.astype(int) - wanted).mean() < 3


def test_orientation_is_applied_on_request_and_crops_follow_it(tmp_path: Path) -> None:
    picture = scene(120, 80)
    records = []
    for orientation in range(1, 9):
        exif = Pillow.Exif()
        exif[0x0112] = orientation
        records.append(encoded(picture, quality=90, subsampling="4:4:4", exif=exif))

    stored = decoded(tmp_path, records, Image())
    seen = decoded(tmp_path, records, Image(orient=True))
    centres = decoded(tmp_path, records, Image((64, 80), crop=CenterCrop(0.8), orient=True))

    for record, plain, turned, centre in zip(records, stored, seen, centres, strict=True):
        opened = Pillow.open(io.BytesIO(record))
        np.testing.assert_array_equal(plain, np.asarray(opened))
        upright = ImageOps.exif_transpose(opened)
        np.testing.assert_array_equal(turned, np.asarray(upright))
        side = min(upright.width, upright.height * 80 / 64) * 0.8
        width, height = int(side + 0.5), int(side * 64 / 80 + 0.5)
        x, y = (upright.width - width) // 2, (upright.height - height) // 2
        box = upright.crop((x, y, x + width, y + height))
        wanted = np.asarray(box.resize((80, 64), Pillow.Resampling.BILINEAR))
        assert np.abs(centre.astype(int) - wanted).max() <= 3


def test_a_tiff_comes_out_upright_whatever_its_orientation(tmp_path: Path) -> None:
    picture = scene(60, 44)
    records = [encoded(picture, "TIFF", tiffinfo={274: orientation}) for orientation in range(1, 9)]

    found = decoded(tmp_path, records, Image())
    sized = decoded(tmp_path, records, Image((22, 30)))

    for record, pixels in zip(records, found, strict=True):
        upright = np.asarray(Pillow.open(io.BytesIO(record)).convert("RGB"))
        np.testing.assert_array_equal(pixels, upright)
    assert [pixels.shape for pixels in found] == [(44, 60, 3)] * 4 + [(60, 44, 3)] * 4
    assert sized.shape == (8, 22, 30, 3)


def test_colours_of_all_kinds_become_rgb_or_grey(tmp_path: Path) -> None:
    picture = scene(60, 44)
    wide = Pillow.fromarray(np.linspace(0, 65535, 60 * 44).reshape(44, 60).astype(np.uint16))
    records = [
        encoded(picture.convert("L"), quality=95),
        encoded(picture.convert("CMYK"), quality=95),
        encoded(picture.convert("RGBA"), "PNG"),
        encoded(picture.convert("P"), "PNG"),
        encoded(picture.convert("1"), "PNG"),
        encoded(picture, "WEBP", lossless=True),
    ]

    colours = decoded(tmp_path, [*records, encoded(wide, "PNG")], Image())
    greys = decoded(tmp_path, [*records, encoded(wide, "PNG")], Image(channels=1))

    for record, colour, grey in zip(records, colours, greys, strict=False):
        opened = Pillow.open(io.BytesIO(record))
        assert np.abs(colour.astype(int) - np.asarray(opened.convert("RGB"))).max() <= 1
        assert np.abs(grey[..., 0].astype(int) - np.asarray(opened.convert("L"))).max() <= 2
    np.testing.assert_array_equal(greys[-1][..., 0], np.asarray(wide) >> 8)
    np.testing.assert_array_equal(colours[-1][..., 2], np.asarray(wide) >> 8)


def test_floats_are_normalised_in_both_layouts(tmp_path: Path) -> None:
    record = encoded(scene(64, 48), quality=90)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    (plain,) = decoded(tmp_path, [record], Image((48, 64)))
    wanted = ((plain / 255.0 - mean) / std).astype(np.float32)

    for layout, axes in (("NHWC", (0, 1, 2)), ("NCHW", (2, 0, 1))):
        for dtype in ("float32", "float16"):
            decoder = Image((48, 64), dtype=dtype, layout=layout, mean=mean, std=std)
            (found,) = decoded(tmp_path, [record], decoder)

            assert found.dtype == dtype
            np.testing.assert_array_equal(found, wanted.transpose(axes).astype(dtype))
        (same,) = decoded(tmp_path, [record], Image((48, 64), layout=layout))
        np.testing.assert_array_equal(same, plain.transpose(axes))


def test_chance_is_a_function_of_seed_epoch_and_position(tmp_path: Path) -> None:
    torch_side = pytest.importorskip("ffrecord.torch")
    record = encoded(scene(160, 120), quality=90)
    reader = reader_of(tmp_path, [record] * 8)
    decoder = Image(40, crop=RandomCrop(), flip=0.5, threads=1)
    sampler = torch_side.Sampler(reader, 8, seed=3, rank=0, world_size=1)
    step = next(iter(sampler))
    one = reader.read(step, decode=decoder).whole

    threaded = pickle.loads(pickle.dumps(Image(40, crop=RandomCrop(), flip=0.5, threads=5)))
    np.testing.assert_array_equal(reader.read(step, decode=threaded).whole, one)
    assert len({picture.tobytes() for picture in one}) == 8
    parts = [torch_side.Sampler(reader, 8, seed=3, rank=rank, world_size=4) for rank in range(4)]
    cut = [reader.read(next(iter(part)), decode=decoder).whole for part in parts]
    np.testing.assert_array_equal(np.concatenate(cut), one)
    sampler.set_epoch(1)
    assert not np.array_equal(reader.read(next(iter(sampler)), decode=decoder).whole, one)


def test_random_crops_and_flips_show_what_they_should(tmp_path: Path) -> None:
    # A picture whose colours tell the place: red grows to the right, green grows downwards.
    y, x = np.mgrid[:200, :250]
    pixels = np.stack([x, y, np.zeros_like(x)], axis=-1).astype(np.uint8)
    reader = reader_of(tmp_path, [encoded(Pillow.fromarray(pixels), "PNG")] * 400)
    decoder = Image(16, crop=RandomCrop((0.2, 0.6), (0.5, 2.0)), flip=0.25)

    made = reader.read(range(400), decode=decoder).whole.astype(float)

    red, green = made[:, 8, :, 0], made[:, :, 8, 1]
    across, down = (red[:, -1] - red[:, 0]) * 16 / 15, (green[:, -1] - green[:, 0]) * 16 / 15
    flipped = across < 0
    assert 0.15 < flipped.mean() < 0.35
    shares = np.abs(across) * down / (200 * 250)
    assert shares.min() > 0.17 and shares.max() < 0.63
    aspects = np.abs(across) / down
    assert aspects.min() > 0.45 and aspects.max() < 2.2
    assert aspects.min() < 0.7 and aspects.max() > 1.4
    left = red.min(axis=1)
    assert left.min() < 15 and left.max() > 60


def damaged() -> dict[str, tuple[bytes, str]]:
    """Records that are no pictures, and what is said of them."""
    good = encoded(scene(300, 200), quality=90)
    bomb = bytearray(good)
    frame = good.index(b"\xff\xc0")
    bomb[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"
    small = encoded(Pillow.new("L", (1, 1)), "PNG")
    png_bomb = small[:16] + (100_000).to_bytes(4, "big") * 2 + small[24:]
    return {
        "cut": (good[: len(good) // 2], "remature end"),
        "header": (good[:30], "remature end"),
        "bomb": (bytes(bomb), "at most 67108864"),
        "png": (png_bomb, ""),
        "noise": (b"\xff\xd8\xff" + bytes(range(256)), "JPEG"),
        "text": (b"not a picture", "not a picture"),
        "empty": (b"", ""),
    }


@pytest.mark.parametrize("name", list(damaged()))
@pytest.mark.parametrize("size", [None, 64])
def test_what_is_no_picture_is_a_corrupt_record(
    tmp_path: Path, name: str, size: int | None
) -> None:
    record, what = damaged()[name]
    good = encoded(scene(300, 200), quality=90)
    reader = reader_of(tmp_path, [good, record, good, good])
    decoder = Image(size)

    with pytest.raises(ffrecord.CorruptionError, match=r"pictures\.ffr: record 1 .*" + what):
        reader.read([0, 1], decode=decoder)
    kept = reader.read([0, 1, 2], decode=decoder, on_corrupt="keep")
    skipped = reader.read([0, 1, 2], decode=decoder, on_corrupt="skip")
    replaced = reader.read([0, 1], decode=decoder, on_corrupt="replace")

    assert kept.status.tolist() == [0, 3, 0]
    assert not kept.whole[1].any()
    assert skipped.indices.tolist() == [0, 2] and len(skipped.whole) == 2
    np.testing.assert_array_equal(skipped.whole[1], kept.whole[2])
    assert replaced.indices.tolist() == [0, 2]
    np.testing.assert_array_equal(replaced.whole[1], kept.whole[2])
    assert list(reader.stats()["damaged"]) == [1]


def progressive_of(scans: int) -> bytes:
    """A grey JPEG of 8 x 8 pixels that says little in many scans, all of them allowed."""

    def segment(marker: int, body: bytes) -> bytes:
        return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body

    def scan(first: int, last: int, high: int, low: int) -> bytes:
        head = bytes([1, 1, 0, first, last, high << 4 | low])
        return segment(0xDA, head) + b"\x7f"  # The one code that there is, then filling.

    made = b"\xff\xd8" + segment(0xDB, bytes([0]) + bytes([1]) * 64)
    made += segment(0xC2, bytes([8, 0, 8, 0, 8, 1, 1, 0x11, 0]))
    for table in (0x00, 0x10):
        made += segment(0xC4, bytes([table, 1]) + bytes(15) + bytes([0]))
    bits = [(13, 0), *((low, low + 1) for low in reversed(range(13)))]
    finer = [(k, k, high, low) for k in range(1, 64) for low, high in bits]
    assert scans <= 1 + len(finer)
    for words in [(0, 0, 0, 0), *finer][:scans]:
        made += scan(*words)
    return made + b"\xff\xd9"


def test_a_jpeg_of_very_many_scans_is_refused(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, [progressive_of(500), progressive_of(501), progressive_of(883)])
    for size in (None, 8):
        assert (reader.read([0], decode=Image(size, threads=1)).whole[0] == 128).all()
        for record in (1, 2):
            with pytest.raises(ffrecord.CorruptionError, match="more than 500 scans"):
                reader.read([record], decode=Image(size, threads=1))


def test_nothing_is_allocated_for_a_picture_that_is_too_large(tmp_path: Path) -> None:
    # Progressive: a decoder that believed it would take 25 GB for its coefficients.
    bomb = bytearray(encoded(scene(64, 64), progressive=True))
    frame = bomb.index(b"\xff\xc2")
    bomb[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"
    reader = reader_of(tmp_path, [bytes(bomb)] * 4)
    for size in (None, 64):
        before = address_space_max()
        kept = reader.read(range(4), decode=Image(size, threads=1), on_corrupt="keep")

        assert kept.status.tolist() == [3] * 4
        assert address_space_max() - before < 1 << 30


def address_space_max() -> int:
    """The most that this process ever had, touched or not, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmPeak:")).split()[1])


def test_a_limit_of_pixels_holds_for_every_format(tmp_path: Path) -> None:
    for form in ("JPEG", "PNG"):
        reader = reader_of(tmp_path, [encoded(scene(40, 30), form)])
        assert len(reader.read([0], decode=Image(max_pixels=1200)).whole) == 1
        with pytest.raises(ffrecord.CorruptionError, match="40 x 30 pixels; at most 1199"):
            reader.read([0], decode=Image(max_pixels=1199))


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"size": (5, -1)},
        {"crop": CenterCrop()},
        {"size": 8, "crop": CenterCrop(0)},
        {"size": 8, "crop": RandomCrop(area=(0.5, 0.2))},
        {"size": 8, "crop": RandomCrop(aspect=(0, 1))},
        {"flip": 1.5},
        {"channels": 2},
        {"dtype": "int8"},
        {"layout": "CHW"},
        {"std": 0},
        {"mean": [0.5, 0.5]},
        {"max_pixels": 0},
    ],
)
def test_an_option_out_of_range_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="image: "):
        Image(**options)
