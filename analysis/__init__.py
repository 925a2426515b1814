"""Conclusions from results tables alone: pure functions of the table, never of the runs. Imports no torch."""
