"""Panels of the run screen, one per file. ``ui/run_screen_panel_list_and_layout.py`` lists them."""
