"""Panels of the run screen, one file each; ``ui/panel_table.py`` lists them."""
