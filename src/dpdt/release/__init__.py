"""What is handed over when a run is done: the model, what it guarantees, and how to use it."""
