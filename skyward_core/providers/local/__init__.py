"""Nodes on this machine."""
