"""Code that runs on nodes. Uses only the standard library, except for cloudpickle and packages of user code."""
