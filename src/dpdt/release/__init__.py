"""Handing a run over: what leaves it, and what its data have paid."""
