"""Code that the client runs on a host before or besides an agent: inspection, file upload, package installation."""
