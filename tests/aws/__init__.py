"""EC2 without AWS: its API by moto, its meaning by what stands in front, its instances by hosts of the lab.

``with Bed() as bed`` for tests, ``python -m tests.aws up`` by hand; README.md says what is true of it.
"""

from .bed import Bed, BedError

__all__ = ["Bed", "BedError"]
