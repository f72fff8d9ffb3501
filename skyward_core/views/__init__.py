"""State for screens, derived from the events, logs and metrics of pools."""
