"""Looking at the records of files, and writing them anew: what these commands do."""
