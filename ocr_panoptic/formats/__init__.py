"""File formats: each format has one owner that reads, checks and writes it."""
