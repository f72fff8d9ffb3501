"""What the run screen is made of: a file for each panel, and a row for it in the table."""
