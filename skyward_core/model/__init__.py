"""Values that do nothing by themselves. Standard library only."""
