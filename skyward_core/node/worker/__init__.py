"""The worker: the process that runs the user code of one rank."""
