"""In which order records are read."""
