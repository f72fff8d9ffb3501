"""How the client reaches agents through SSH."""
