"""Parts that all screens share: actions, themes, hints, style sheets."""
