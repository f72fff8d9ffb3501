"""Where the threads of ranks are, and where they spend their time. Loaded when somebody first asks."""
