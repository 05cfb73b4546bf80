"""`ffrecord.utils.dump`, where code for HFAiLab/ffrecord looks for it."""

from ffrecord.compat._dump import dump

__all__ = ["dump"]
