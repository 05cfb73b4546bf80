"""The room that all others may use: memory, threads, names and addresses; nothing of records."""
