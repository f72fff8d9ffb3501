"""Panels of the run screen, one per file. ``ui/panel_registry.py`` lists them."""
