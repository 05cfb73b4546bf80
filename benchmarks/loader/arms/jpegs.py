"""One arm of the benchmark `jpeg`: `jpegs.py ARM FOLDER THREADS SECONDS`; jpeg.py tells of it.

Pictures come decoded to RGB, each as large as it is, in batches of 64 arrays. Prints one JSON
object; `digest` is the sum over all pictures of the CRC-32 of the pixels, begun with the number.
"""

import json
import pathlib
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

_BATCH = 64
_WARM_UP_S = 0.3
Pixels = npt.NDArray[np.uint8]
# Endless: the numbers of pictures, and what they look like.
Batches = Iterator[tuple[list[int], list[Pixels]]]


def ours(folder: pathlib.Path, threads: int, *, spread: bool) -> Batches:
    """The loader's threads, each with a batch of its own, or one whose batches many decode."""
    from ffrecord.decode import Image
    from ffrecord.torch import DataLoader, Dataset

    decoder = Image(threads=threads if spread else 1)
    dataset = Dataset(folder / "data.ffr", decode=decoder)
    loader = DataLoader(
        dataset,
        batch_size=_BATCH,
        mode="threads",
        num_workers=1 if spread else threads,
        collate_fn=list,
        timeout=60,
    )
    while True:
        first = 0
        for batch in loader:
            pixels = [np.asarray(picture) for picture in batch]
            yield list(range(first, first + len(pixels))), pixels
            first += len(pixels)


def peer(folder: pathlib.Path, threads: int, decode: Callable[[bytes], Pixels]) -> Batches:
    """A pool of threads over JPEGs in memory, one batch ahead."""
    pictures = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]

    def begun(first: int) -> tuple[list[int], Iterator[Pixels]]:
        numbers = list(range(first, min(first + _BATCH, len(pictures))))
        return numbers, pool.map(decode, [pictures[number] for number in numbers])

    with ThreadPoolExecutor(threads) as pool:
        firsts = range(0, len(pictures), _BATCH)
        ahead = begun(0)
        for number in count(1):
            following = begun(firsts[number % len(firsts)])
            yield ahead[0], list(ahead[1])
            ahead = following


def pillow(data: bytes) -> Pixels:
    """By Pillow."""
    import io

    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def simplejpeg(data: bytes) -> Pixels:
    """By simplejpeg, which has its own libjpeg-turbo."""
    import simplejpeg as package

    made: Pixels = package.decode_jpeg(data, "RGB")
    return made


def opencv(data: bytes) -> Pixels:
    """By OpenCV, whose pixels are blue, green, red."""
    import cv2

    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    return np.ascontiguousarray(cv2.imdecode(np.frombuffer(data, np.uint8), flags)[..., ::-1])


def spdl(data: bytes) -> Pixels:
    """By SPDL, which is FFmpeg's decoder."""
    import spdl.io

    made: Pixels = spdl.io.to_numpy(spdl.io.load_image(data, filter_desc="format=pix_fmts=rgb24"))
    return made


ARMS: dict[str, Callable[[pathlib.Path, int], Batches]] = {
    "ours": lambda folder, threads: ours(folder, threads, spread=False),
    "ours_spread": lambda folder, threads: ours(folder, threads, spread=True),
    "pillow": lambda folder, threads: peer(folder, threads, pillow),
    "simplejpeg": lambda folder, threads: peer(folder, threads, simplejpeg),
    "opencv": lambda folder, threads: peer(folder, threads, opencv),
    "spdl": lambda folder, threads: peer(folder, threads, spdl),
}


def measured(batches: Batches, seconds: float) -> dict[str, Any]:
    """Load for so long; every picture is there once before that, for the digest."""
    digest, seen = 0, -1
    for numbers, pixels in batches:
        if numbers[0] <= seen:
            break
        for number, picture in zip(numbers, pixels, strict=True):
            digest += zlib.crc32(np.ascontiguousarray(picture), number)
        seen = numbers[-1]
    warm = time.monotonic() + _WARM_UP_S
    while time.monotonic() < warm:
        next(batches)
    done, begin = 0, time.monotonic()
    while (taken := time.monotonic() - begin) < seconds:
        done += len(next(batches)[0])
    return {"pictures": done, "seconds": taken, "digest": digest}


if __name__ == "__main__":
    NAME, FOLDER, THREADS, SECONDS = sys.argv[1:]
    print(json.dumps(measured(ARMS[NAME](pathlib.Path(FOLDER), int(THREADS)), float(SECONDS))))
