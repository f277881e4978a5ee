"""Figures, drawn from ledgers and runs."""
