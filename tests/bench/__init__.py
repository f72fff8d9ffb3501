"""Benchmarks of speed and memory. ``python -m tests.bench`` lists them, and with a name runs one.

Every figure comes from a fresh interpreter. Ours and the peer's are measured alternately, on the same machine in the
same run.
"""
