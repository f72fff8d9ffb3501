"""What runs on a node: the agent, our one long-lived process there, and its workers. Standard library only
(the workers also use cloudpickle)."""
