"""Packaged example scripts."""
