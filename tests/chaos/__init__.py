"""Faults at random moments under every kind of work at once; everything that comes back is checked."""
