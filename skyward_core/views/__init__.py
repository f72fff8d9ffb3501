"""From events to what a screen shows now."""
