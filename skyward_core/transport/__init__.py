"""How the client reaches a node's agent."""
