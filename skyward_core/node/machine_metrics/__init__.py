"""Machine metrics of a node: GPU, CPU, memory, disk and network.

``sampler`` runs in a separate process because the driver can hang or crash it.
"""
