"""What the subcommands do. None of these modules is imported before its command runs."""
