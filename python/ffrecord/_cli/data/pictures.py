"""Small copies of pictures, if Pillow is there."""

import io
import warnings

# A picture of fewer bytes is shown as it is; a larger one at this size.
_AS_IT_IS_BYTES = 32 << 10
_SIDE = 256
# More are not decoded: a few bytes can claim to be a picture that fills the memory.
_PIXELS_MAX = 64 << 20


def thumbnail(data: bytes) -> tuple[bytes, str] | None:
    """A small JPEG or PNG, and its media type; None if the picture should be shown as it is."""
    if len(data) <= _AS_IT_IS_BYTES:
        return None
    try:
        from PIL import Image
    except ImportError:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(
                io.BytesIO(data), formats=("JPEG", "PNG", "GIF", "WEBP", "BMP")
            ) as image:
                if image.width * image.height > _PIXELS_MAX:
                    return None
                image.draft("RGB", (_SIDE, _SIDE))
                has_alpha = "A" in image.getbands() or "transparency" in image.info
                small = image.convert("RGBA" if has_alpha else "RGB")
        small.thumbnail((_SIDE, _SIDE))
        kind = "PNG" if has_alpha else "JPEG"
        made = io.BytesIO()
        small.save(made, kind)
    except Exception:  # Whatever a decoder makes of a stranger's bytes: shown as they are.
        return None
    return made.getvalue(), f"image/{kind.lower()}"
