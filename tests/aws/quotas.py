"""vCPU quotas of an account by family of types, separately for on-demand and spot.

Codes are from "Amazon EC2 instance type quotas" and the console of Service Quotas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT = 10_000.0  # enough to be in nobody's way


@dataclass(frozen=True, slots=True)
class Quota:
    code: str
    name: str
    families: tuple[str, ...]
    market: str


_STANDARD = ("a", "c", "d", "h", "i", "m", "r", "t", "z")

QUOTAS = (
    Quota("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", _STANDARD, "on-demand"),
    Quota("L-DB2E81BA", "Running On-Demand G and VT instances", ("g", "vt"), "on-demand"),
    Quota("L-417A185B", "Running On-Demand P instances", ("p",), "on-demand"),
    Quota("L-1945791B", "Running On-Demand Inf instances", ("inf",), "on-demand"),
    Quota("L-2C3B7624", "Running On-Demand Trn instances", ("trn",), "on-demand"),
    Quota("L-7295265B", "Running On-Demand X instances", ("x",), "on-demand"),
    Quota("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", _STANDARD, "spot"),
    Quota("L-3819A6DF", "All G and VT Spot Instance Requests", ("g", "vt"), "spot"),
    Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", ("p2", "p3", "p4"), "spot"),
    Quota("L-C4BD4855", "All P5 Spot Instance Requests", ("p5",), "spot"),
    Quota("L-B5D1601B", "All Inf Spot Instance Requests", ("inf",), "spot"),
    Quota("L-6B0D517C", "All Trn Spot Instance Requests", ("trn",), "spot"),
    Quota("L-E3A00192", "All X Spot Instance Requests", ("x",), "spot"),
)


def quota_of(kind: str, market: str) -> Quota | None:
    """Return the quota that applies to an instance type. None if no quota in the table applies."""
    letters = re.match(r"([a-z]+)(\d*)", kind)
    if letters is None:
        return None
    family, numbered = letters[1], letters[0]
    for quota in QUOTAS:
        if quota.market == market and any(name in (family, numbered) for name in quota.families):
            return quota
    return None
