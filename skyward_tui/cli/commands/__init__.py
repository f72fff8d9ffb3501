"""Implementations of the subcommands, each imported only when its command runs."""
