"""File formats: for each format, one module reads, checks and writes its files."""
