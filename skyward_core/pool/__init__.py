"""A pool's life on the client: nodes, links, runs, teardown. Asynchronous; runs on one loop."""
