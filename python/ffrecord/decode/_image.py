"""Pictures: JPEG by libjpeg-turbo, others by Pillow; crop, resize, flip, normalise in C++."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord.decode._decoder import Decoder, Field, Native

# The formats that Pillow may read: some of its many others start programs.
_FORMATS = ("PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_PIXELS_MAX = 1 << 26


@dataclass(frozen=True)
class CenterCrop:
    """The middle: the largest box of the target shape, scaled by `share` on each side.

    To resize the shorter side to 256 and take the middle 224, use a share of 224 / 256.
    """

    share: float = 1.0


@dataclass(frozen=True)
class RandomCrop:
    """A box anywhere, of a random share of the picture's area and a random aspect (width / height).

    Chosen as in torchvision's RandomResizedCrop: ten tries, then the largest box in the middle.
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)


class Image(Decoder):
    """Decodes pictures; with a size, a batch becomes one array, without one, a list of arrays.

    The result is a function of the options, the picture and (seed, epoch, position), whatever the
    number of threads and workers. loading.md, "Pictures", defines it.
    """

    def __init__(
        self,
        size: int | tuple[int, int] | None = None,
        *,
        crop: CenterCrop | RandomCrop | None = None,
        flip: float = 0.0,
        channels: Literal[1, 3] = 3,
        dtype: Literal["uint8", "float16", "float32"] = "uint8",
        layout: Literal["NHWC", "NCHW"] = "NHWC",
        mean: Sequence[float] | float = 0.0,
        std: Sequence[float] | float = 1.0,
        orient: bool = False,
        max_pixels: int = _PIXELS_MAX,
        threads: int | None = None,
    ) -> None:
        """Define the result.

        Args:
            size: of every decoded picture, (height, width); an int is both. None: each keeps its
                own size.
            crop: the part to keep, resized to `size`; None keeps the whole picture, stretched.
            flip: probability of a mirror image, left to right.
            channels: 3 is RGB, 1 is grey; pictures are converted. Alpha is dropped.
            dtype: "uint8", or floats: (value / 255 - mean) / std.
            layout: "NHWC", or "NCHW" as torch's convolutions take it.
            mean: for floats; one number, or one for each channel.
            std: for floats; one number, or one for each channel.
            orient: rotate JPEGs by their EXIF. Pillow and torchvision do so only on request.
            max_pixels: a larger picture counts as corrupt; nothing is allocated for it.
            threads: limit for one batch; by default one in a worker process, else one per
                processor. Except for the caller's, they come from one pool per process.

        Raises:
            ValueError: an option is out of range.
        """
        height, width = (size, size) if isinstance(size, int) else size or (0, 0)
        if size is not None and min(height, width) < 1:
            raise ValueError(f"image: the size is {size}; sides are 1 or more pixels")
        self._arguments: dict[str, Any] = {
            "size": size,
            "crop": crop,
            "flip": flip,
            "channels": channels,
            "dtype": dtype,
            "layout": layout,
            "mean": mean,
            "std": std,
            "orient": orient,
            "max_pixels": max_pixels,
            "threads": threads,
        }
        self.size = None if size is None else (height, width)
        self.channels = channels
        self.layout = layout
        self.threads = threads
        self.max_pixels = max_pixels
        self._inner = _ffrecord.ImageDecoder(
            height=height,
            width=width,
            crop=_numbers(crop),
            flip=flip,
            channels=channels,
            dtype=dtype,
            layout=layout,
            mean=_each(mean, channels, "mean"),
            deviation=_each(std, channels, "std"),
            orient=orient,
            pixels_max=max_pixels,
        )
        self._dtype = np.dtype(dtype)

    def decode(
        self, field: Field
    ) -> tuple[npt.NDArray[Any] | list[npt.NDArray[Any]], dict[int, str]]:
        """See `Decoder`."""
        foreign, wrong = self._by_pillow(field)
        status = np.array(field.status)
        status[list(wrong)] = 1
        block, places, damaged = self._inner.decode(
            field._replace(status=status),
            foreign,
            field.seed,
            field.epoch,
            field.positions,
            self._thread_count(),
        )
        wrong.update(damaged)
        return self._values(block, places), wrong

    def native(self) -> Native | None:
        """See `Decoder`. It refuses what Pillow decodes."""
        if type(self).decode is not Image.decode:
            return None
        return Native(self._inner.native(self._thread_count()), self._values)

    def _thread_count(self) -> int:
        return _threads() if self.threads is None else self.threads

    def _values(
        self, block: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]
    ) -> npt.NDArray[Any] | list[npt.NDArray[Any]]:
        if self.size is not None:
            return block.view(self._dtype).reshape(-1, *self._shape(*self.size))
        pictures = []
        for start, height, width in places.tolist():
            shape = self._shape(height, width)
            nbytes = height * width * self.channels * self._dtype.itemsize
            pictures.append(block[start : start + nbytes].view(self._dtype).reshape(shape))
        return pictures

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Image, **self._arguments), ()

    def __repr__(self) -> str:
        return f"<ffrecord.decode.Image {self._arguments}>"

    def _shape(self, height: int, width: int) -> tuple[int, int, int]:
        if self.layout == "NHWC":
            return height, width, self.channels
        return self.channels, height, width

    def _by_pillow(
        self, field: Field
    ) -> tuple[list[tuple[int, npt.NDArray[np.uint8]]], dict[int, str]]:
        """The pixels of pictures other than JPEG, and why some have none."""
        made, wrong = [], {}
        for row in self._inner.others(field).tolist():
            start, size = int(field.starts[row]), int(field.sizes[row])
            found = self._pixels(field.slab[start : start + size].tobytes())
            if isinstance(found, str):
                wrong[row] = found
            else:
                made.append((row, found))
        return made, wrong

    def _pixels(self, data: bytes) -> npt.NDArray[np.uint8] | str:
        try:
            from PIL import Image as Pillow
            from PIL import UnidentifiedImageError
        except ImportError:
            raise ImportError(
                "the picture is not a JPEG, and Pillow, which decodes other pictures, is not "
                "installed: pip install pillow"
            ) from None
        try:
            with Pillow.open(io.BytesIO(data), formats=_FORMATS) as picture:
                width, height = picture.size
                if width * height > self.max_pixels:
                    return (
                        f"a picture of {width} x {height} pixels; at most {self.max_pixels} "
                        "are allowed, raise max_pixels for more"
                    )
                if picture.mode.startswith("I;16") or picture.mode == "I":
                    # Pillow cuts values above 255 off; their upper 8 bits are the picture.
                    wide = np.clip(np.asarray(picture), 0, 0xFFFF)
                    grey = (wide >> 8).astype(np.uint8)[..., None]
                    return np.ascontiguousarray(
                        np.broadcast_to(grey, (*grey.shape[:2], self.channels))
                    )
                pixels = np.asarray(picture.convert("L" if self.channels == 1 else "RGB"))
        except MemoryError:
            raise
        except UnidentifiedImageError:  # Its text names an object of ours.
            return f"not a picture that Pillow can read: none of {', '.join(_FORMATS)}"
        except Exception as error:  # Pillow's decoders raise all sorts of things at damaged bytes.
            return f"not a picture that Pillow can read: {error}"[:200]
        # Pillow turns a TIFF upright as it decodes; up to 10.0 that changes `size` only then.
        return np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], self.channels))


def _numbers(crop: CenterCrop | RandomCrop | None) -> list[float]:
    if crop is None:
        return []
    return [crop.share] if isinstance(crop, CenterCrop) else [*crop.area, *crop.aspect]


def _each(value: Sequence[float] | float, channels: int, name: str) -> list[float]:
    values = [float(value)] * channels if isinstance(value, int | float) else list(value)
    if len(values) != channels:
        raise ValueError(f"image: {name} has {len(values)} numbers for {channels} channels")
    return (values * 3)[:3]


def _threads() -> int:
    """One in each worker: workers are many already."""
    return 1 if parent_process() is not None else len(os.sched_getaffinity(0))
