"""Which Pythons a host has, and what a check-up and a plan say of them."""

from __future__ import annotations

import pytest

from skyward_core.providers.aws.provider import AWS
from skyward_core.providers.slurm.provider import Slurm
from skyward_core.providers.ssh.provider import SSH, check_line
from skyward_core.transport.ssh.host_address import HostPythons, WantedPython, parse_pythons
from skyward_core.transport.transport import MINOR

NONE = HostPythons(())
MANY = HostPythons(("3.14.0", "3.12.10", "3.12.9", "3.9.18"))
UV = HostPythons(("3.9.18",), has_uv=True)
PROJECT = WantedPython(minor="3.12", here="")
LACKS = "3.13" if MINOR != "3.13" else "3.11"  # which no host of these tests has
OTHER = WantedPython(minor=LACKS, here="")
OWN = WantedPython()


def test_what_a_host_says_is_read_as_numbers_and_nothing_else() -> None:
    said = b"word Python 3.9.18; Python 3.11.2; Python 3.10.13; Python 3.11.2; uv; Python 3.14.0rc1+ (odd);"
    assert parse_pythons(said) == HostPythons(("3.14.0", "3.11.2", "3.10.13", "3.9.18"), has_uv=True)
    assert parse_pythons(said).usable == ("3.14.0", "3.11.2")
    assert parse_pythons(b" \x1b[2JPython is what I am; Python x.y; 3.12.1; nouv;") == NONE
    assert (str(NONE), str(UV)) == ("it has no Python at all", "it has Python 3.9.18")


@pytest.mark.parametrize(
    ("there", "wanted", "runs", "state", "words"),
    [
        (MANY, PROJECT, ("3.12.10", "/p"), "ok", "Python 3.12.10 (/p); 3.14.0 for projects of other versions"),
        (HostPythons(("3.12.1",), has_uv=True), PROJECT, ("3.12.1", "/p"), "ok",
         "Python 3.12.1 (/p); its uv fetches others"),
        (UV, PROJECT, None, "ok", "the script is loaded with; it has Python 3.9.18; its uv fetches it at the first"),
        (MANY, OTHER, ("3.14.0", "/p"), "fail",
         f"no Python {LACKS}, the version that the script is loaded with; it has Python 3.14.0, 3.12.10, 3.12.9, "
         f"3.9.18: install python{LACKS} or uv there"),
        (HostPythons(("3.90.1",)), OWN, ("3.90.1", "/p"), "warn",
         f"no Python {MINOR}, the version that runs here; it has Python 3.90.1: only scripts of projects with Python "
         f"3.90 run there. For others install python{MINOR} or uv there"),
        (NONE, OWN, None, "fail", f"it has no Python at all: install python{MINOR} or uv there"),
        (HostPythons(("3.9.18",)), OWN, None, "fail", "it has Python 3.9.18: install"),
    ],
)  # fmt: skip
def test_a_check_up_says_which_it_has_and_for_which_scripts_they_do(
    there: HostPythons, wanted: WantedPython, runs: tuple[str, str] | None, state: str, words: str
) -> None:
    told = check_line("gpu1", there, wanted, runs)
    assert (told.subject, told.state) == ("gpu1", state)
    assert words in told.detail


def test_a_plan_says_which_one_machines_need() -> None:
    assert SSH(["gpu1"]).needs_python("3.12") == "Python 3.12 on each host, or uv there, which fetches it"
    assert SSH(["gpu1"], python="/p").needs_python("3.12") == "Python 3.12 on each host: /p"
    assert Slurm().needs_python("3.12").startswith("Python 3.12 on each node, or uv there")
    assert "3.12 on each instance; where its image has another, the first" in AWS().needs_python("3.12")
