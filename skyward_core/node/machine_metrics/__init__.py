"""Machine metrics of a node: GPU, CPU, memory, disk and network.

``sampler`` runs in a process of its own, because the GPU driver can hang or crash a process.
"""
