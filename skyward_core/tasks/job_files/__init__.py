"""Job files: YAML documents that say what a job needs, how its machines are set up, and what runs there."""
