"""Record files from Hugging Face's `datasets`, and back."""

from ffrecord._integrations.huggingface import from_huggingface, load_dataset, to_huggingface

__all__ = ["from_huggingface", "load_dataset", "to_huggingface"]
