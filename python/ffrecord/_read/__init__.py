"""Reading records: from what a caller names to batches."""
