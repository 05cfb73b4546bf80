"""The API of HFAiLab/ffrecord: record files of version 1 and packed folders, by their old names.

Nothing else in the package stands on it, but for `ffrecord.torch.Dataset`, which is upstream's too.
"""
