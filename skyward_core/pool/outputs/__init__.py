"""What ranks wrote on their nodes: listed, fetched, and named before its machine goes."""
