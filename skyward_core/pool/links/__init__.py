"""The connections to the nodes' agents, and what travels over them."""
