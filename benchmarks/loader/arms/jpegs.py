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
    """As many threads of the loader, each decoding its own batch, or all helping with each."""
    from ffrecord.decode import Image
    from ffrecord.torch import DataLoader, Dataset, Sampler

    dataset = Dataset(folder / "data.ffr", decode=Image(threads=threads if spread else 1))
    loader = DataLoader(
        dataset,
        batch_sampler=Sampler(dataset, _BATCH, last="short"),
        mode="threads",
        num_workers=threads,
        collate_fn=_numbered,
        timeout=60,
    )
    while True:
        yield from loader


def _numbered(batch: Any) -> tuple[list[int], list[Pixels]]:  # noqa: ANN401 - of ffrecord's
    return batch.indices.tolist(), list(batch)


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


def measured(batches: Batches, count: int, seconds: float) -> dict[str, Any]:
    """Load for so long; before that each of `count` pictures once, for the digest."""
    digest, left = 0, count
    while left > 0:
        numbers, pixels = next(batches)
        for number, picture in zip(numbers, pixels, strict=True):
            digest += zlib.crc32(np.ascontiguousarray(picture), number)
        left -= len(numbers)
    warm = time.monotonic() + _WARM_UP_S
    while time.monotonic() < warm:
        next(batches)
    done, begin = 0, time.monotonic()
    while (taken := time.monotonic() - begin) < seconds:
        done += len(next(batches)[0])
    return {"pictures": done, "seconds": taken, "digest": digest}


if __name__ == "__main__":
    NAME, FOLDER, THREADS, SECONDS = sys.argv[1:]
    COUNT = len(list(pathlib.Path(FOLDER).glob("*.jpg")))
    BATCHES = ARMS[NAME](pathlib.Path(FOLDER), int(THREADS))
    print(json.dumps(measured(BATCHES, COUNT, float(SECONDS))))
