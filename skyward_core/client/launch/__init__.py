"""Launch of a run: requests with their options, plans, presets, saved launches."""
