"""Speed and memory, measured: ``python -m tests.bench`` lists what; with a name it measures that.

Every figure comes from a fresh interpreter, ours and the peer's in turn on the same machine in the same run.
"""
