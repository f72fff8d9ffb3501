"""Panels of the run screen, one per file. ``ui/panel_table_and_layout.py`` lists them."""
