"""Random faults during all kinds of work at once, with a check of every result."""
