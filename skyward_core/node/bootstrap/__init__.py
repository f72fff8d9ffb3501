"""What runs on a host before an agent does, and what is done there besides."""
