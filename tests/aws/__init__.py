"""Simulated EC2: the API from moto, EC2's semantics from a layer in front of moto, instances as hosts of the lab.

Tests use ``with Bed() as bed``. ``python -m tests.aws up`` starts one by hand. README.md lists what is simulated.
"""

from .bed import Bed, BedError

__all__ = ["Bed", "BedError"]
