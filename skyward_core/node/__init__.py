"""All that runs on a node. Standard library only, but for cloudpickle and what user code brings."""
