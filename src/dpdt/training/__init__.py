"""The training loop, its progress display, and the run folder."""
