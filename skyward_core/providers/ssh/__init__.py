"""Hosts that run already."""
