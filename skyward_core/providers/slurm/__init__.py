"""Nodes of a cluster that Slurm allocates."""
