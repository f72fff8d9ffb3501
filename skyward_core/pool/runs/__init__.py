"""Runs of a pool: dispatch of their calls, collection of their outcomes, and their ends."""
