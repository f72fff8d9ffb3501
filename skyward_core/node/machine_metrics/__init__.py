"""What measures a node's machine, in a process of its own that may hang or die: ``sampler`` is its whole life."""
