"""Measure the theoretical and effective receptive fields of a backbone's features."""
