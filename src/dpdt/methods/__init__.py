"""Ways to train, behind one protocol."""
