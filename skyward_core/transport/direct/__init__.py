"""Connections of our own to a node, by TLS, where its address can be reached."""
