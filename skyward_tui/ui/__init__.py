"""Infrastructure of all screens: actions, themes, style sheets, terminal driver."""
