"""Attacks on finished runs and on the algorithm itself, and the lower bounds on ε they prove."""
