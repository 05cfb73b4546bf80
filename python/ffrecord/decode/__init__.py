"""Decoders: convert the bytes of a column, a batch at a time, without the GIL.

    Dataset("train.ffr", decode={"image": Image(224, crop=RandomCrop(), flip=0.5)})

The keys are columns; other columns stay as they are. For records that are plain bytes, `decode=`
is the decoder itself. A record that cannot be decoded counts as corrupt, for `on_corrupt`.
"""

from ffrecord.decode._array_files import Npy, Safetensors
from ffrecord.decode._decoder import Decode, Decoder, Field
from ffrecord.decode._image import CenterCrop, Image, RandomCrop
from ffrecord.decode._text import Text

__all__ = [
    "CenterCrop",
    "Decode",
    "Decoder",
    "Field",
    "Image",
    "Npy",
    "RandomCrop",
    "Safetensors",
    "Text",
]
