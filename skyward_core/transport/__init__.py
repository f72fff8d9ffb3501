"""Transports: the connections through which the client reaches a node's agent."""
