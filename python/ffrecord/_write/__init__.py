"""Writing record files, and repairing them."""
