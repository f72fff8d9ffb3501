"""SSH transport: the connections through which the client reaches agents on other hosts."""
