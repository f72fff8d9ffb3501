"""Package declarations of a project: lock files, requirements, pyproject.toml, and local packages."""
