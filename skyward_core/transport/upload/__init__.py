"""What is sent to hosts: the bundle and the working folder."""
