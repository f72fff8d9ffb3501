"""Runs: their calls on their way, their outcomes, and how they end."""
