"""Built-in plugins, one file each."""
