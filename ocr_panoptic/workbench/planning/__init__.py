"""Plan a training from the facts of its data."""
