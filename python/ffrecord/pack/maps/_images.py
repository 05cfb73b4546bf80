"""Pictures in another size or another form."""

import io
from typing import Any

from ffrecord.pack._source import needed
from ffrecord.pack.maps._base import Map, column_in, value_of

_COLUMNS = ("image", "payload", "jpg", "jpeg", "png", "webp")
_FORMATS = ("JPEG", "PNG", "WEBP")
# The modes that each form has; others become RGB.
_MODES = {
    "JPEG": ("L", "RGB", "CMYK"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16"),
    "WEBP": ("RGB", "RGBA"),
}
# Modes of more than 8 bits, whose values others would cut off.
_DEEP = ("I", "F")


class resize(Map):
    """Makes pictures smaller, so that the shorter side has `size` pixels; and encodes them again.

    A picture that is no larger stays as it is, byte for byte, unless it has another form. The
    orientation that a camera noted is applied. A picture that moves gives its first frame. Other
    columns stay as they are.

    Args:
        size: of the shorter side.
        column: with the pictures; by default the one called image, payload, jpg, jpeg, png or webp.
        format: "JPEG", "PNG" or "WEBP"; by default a picture keeps its own, others become JPEG.
        quality: of JPEG and WebP.

    Raises:
        ValueError: an argument is out of its range.
        ImportError: Pillow is not installed.
    """

    def __init__(self, size: int, column: str = "", format: str = "", quality: int = 90) -> None:
        """Keep the arguments."""
        if size < 1 or not 1 <= quality <= 100 or format.upper() not in ("", *_FORMATS):
            raise ValueError(
                f"resize: size is {size}, at least 1; quality {quality}, 1 to 100; format "
                f"{format!r}, one of {', '.join(_FORMATS)}"
            )
        self.size, self.column, self.format = size, column, format.upper()
        self.quality = quality
        self.version = needed(
            "PIL", "resize", "pillow"
        ).__version__  # Another may decode otherwise.

    def columns(self, source: Any) -> Any:  # noqa: ANN401 - see `Map`
        """Return those of the source."""
        if source is not None:
            self.column = self.column or column_in(source, _COLUMNS, "resize", "column")
        return source

    def __call__(self, sample: Any) -> Any:  # noqa: ANN401
        """Return the sample with its picture."""
        column = self.column or column_in(sample, _COLUMNS, "resize", "column")
        data = value_of(sample, column, "resize")
        return sample if data is None else {**sample, column: self._resized(bytes(data))}

    def _resized(self, data: bytes) -> bytes:
        from PIL import Image, ImageOps

        with Image.open(io.BytesIO(data)) as image:
            own = image.format if image.format in _FORMATS else "JPEG"
            form = self.format or own
            if min(image.size) <= self.size and form == image.format:
                image.load()  # Else a picture that is damaged is packed.
                return data
            image.draft("RGB", (2 * self.size, 2 * self.size))  # JPEG is decoded smaller.
            upright = ImageOps.exif_transpose(image)
            if upright.mode not in _MODES[form] and upright.mode.startswith(_DEEP):
                raise ValueError(
                    f"resize: pixels are {upright.mode}, which {form} has not: convert the picture "
                    "to 8 bits before, or, of 16 bits, say format='PNG'"
                )
            if upright.mode not in _MODES[form] or upright.mode == "P":
                is_clear = "A" in upright.getbands() or "transparency" in upright.info
                has_alpha = form != "JPEG" and is_clear
                upright = upright.convert("RGBA" if has_alpha else "RGB")
            width, height = upright.size
            if (shorter := min(width, height)) > self.size:
                scale = self.size / shorter
                wanted = (max(1, round(width * scale)), max(1, round(height * scale)))
                upright = upright.resize(wanted, Image.Resampling.LANCZOS)
            made = io.BytesIO()
            options = {} if form == "PNG" else {"quality": self.quality}
            upright.save(made, form, **options)
            return made.getvalue()
