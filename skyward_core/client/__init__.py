"""What people use of the library: scripts by ``api/``, app and command line by the rest."""
