"""What a check-up says of the Pythons of a host: which it has, and for which scripts these will do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...model.machine import Check
from ...transport.ssh.host_pythons import HostPythons, minor_of, newest_of_each

if TYPE_CHECKING:
    from ...transport.ssh.wanted_python import WantedPython


def line(host: str, there: HostPythons, wanted: WantedPython, runs: tuple[str, str] | None) -> Check:
    """The line of a host.

    Args:
        there: what it has.
        wanted: what ranks need: of a script that is known, else of one without a Python of its own.
        runs: version and path of the one that was asked there; None where none could be.
    """
    others = newest_of_each(each for each in there.usable if minor_of(each) != wanted.minor)
    if runs is not None and minor_of(runs[0]) == wanted.minor:
        more = [f"{_listed(others)} for projects of other versions"] if others else []
        more += ["its uv fetches others"] if there.has_uv else []
        return Check(host, "ok", "; ".join([f"Python {runs[0]} ({runs[1]})", *more]))
    lacks = f"no Python {wanted.minor}, the version that {wanted.is_what}; {there}"
    if there.has_uv and not wanted.named:
        return Check(host, "ok", f"{lacks}; its uv fetches it at the first start")
    remedy = f"install python{wanted.minor} or uv there"
    if wanted.is_ours and others:
        scripts = f"only scripts of projects with Python {_listed(map(minor_of, others))} run there"
        return Check(host, "warn", f"{lacks}: {scripts}. For others {remedy}")
    return Check(host, "fail", f"{lacks}: {remedy}")


def _listed(names: Iterable[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))
