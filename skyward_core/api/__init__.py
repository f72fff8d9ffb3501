"""What scripts use: pools as context managers, the operators, attaching, what they print."""
