"""The plugins that come with the library, a file each."""
