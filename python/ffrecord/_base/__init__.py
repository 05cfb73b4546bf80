"""What every room may use: memory, threads, names and addresses; nothing of records."""
