"""The agent: the one long-lived process of each node, which starts the workers and serves the clients.

Uses only the standard library.
"""
