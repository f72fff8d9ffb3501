"""How the client reaches agents on this machine."""
