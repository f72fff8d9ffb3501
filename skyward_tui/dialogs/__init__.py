"""Modal dialogs over a screen. Dialogs import no screens."""
