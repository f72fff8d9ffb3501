"""What the app and the command line use of the library."""
