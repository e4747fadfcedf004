"""Receptive fields of a backbone's features, theoretical and effective."""
