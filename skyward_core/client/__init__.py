"""Interface of the library for the app and the command line; scripts use ``api/``."""
