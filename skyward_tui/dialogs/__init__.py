"""What lies over a screen until it is answered. A dialog knows no screen."""
