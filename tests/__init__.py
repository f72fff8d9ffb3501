"""Test package. It is a package so that ``python -m tests.lab`` and ``python -m tests.bench`` work."""
