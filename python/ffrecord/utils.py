"""`ffrecord.utils.dump`, where code for HFAiLab/ffrecord looks for it."""

from ffrecord.compat import dump

__all__ = ["dump"]
