"""Modal dialogs, shown over a screen. Dialogs do not import screens."""
