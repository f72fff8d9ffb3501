"""Panels of the run screen, one file each; ``ui/panel_registry.py`` lists them."""
