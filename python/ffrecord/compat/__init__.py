"""The API of HFAiLab/ffrecord: record files of version 1 and packed folders, by their old names.

Nothing else in the package uses it, except `ffrecord.torch.Dataset`, which is upstream's too.
"""

from ffrecord.compat._dump import dump
from ffrecord.compat._fileio import FileReader, FileWriter, checkFsAlign
from ffrecord.compat._packed_folder import PackedFolder, pack_folder

__all__ = ["FileReader", "FileWriter", "PackedFolder", "checkFsAlign", "dump", "pack_folder"]
