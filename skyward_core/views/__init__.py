"""Views: the state that screens show, derived from the events, logs and metrics of pools."""
