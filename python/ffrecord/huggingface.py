"""Record files from Hugging Face's `datasets`, and back."""

from ffrecord._integrations.huggingface import from_huggingface, load_dataset, to_huggingface

__all__ = ["from_huggingface", "load_dataset", "to_huggingface"]

for _each in (from_huggingface, load_dataset, to_huggingface):
    _each.__module__ = __name__  # Messages and pickles name the public module.
