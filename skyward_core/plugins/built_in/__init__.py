"""The plugins that come with the library."""
