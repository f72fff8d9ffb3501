"""From a launch request to a run: options, plans, presets, saved launches."""
