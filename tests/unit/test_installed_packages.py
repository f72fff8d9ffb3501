"""Package lists of interpreters, and errors about missing integration packages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.api.dask_client_connection import DaskConnection
from skyward_core.node.bootstrap import image_environment
from skyward_core.plugins.built_in.ray import _check_tokens
from skyward_core.plugins.redis_shared_state_client import SharedStateConnection


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("exec sleep 300", "did not list its packages within 0.2 s"),
        ("echo 5", "cannot list the installed packages"),
        ("echo '[1, 2]'", "cannot list the installed packages"),
        ("echo no; exit 1", "cannot list the installed packages"),
        ("exit 0", "cannot list the installed packages"),
    ],
)
def test_package_list_failure_of_an_interpreter_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, words: str
) -> None:
    monkeypatch.setattr(
        image_environment, "ANSWER_TIMEOUT", 0.2 if "sleep" in says else image_environment.ANSWER_TIMEOUT
    )
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{says}\n")
    python.chmod(0o755)
    with pytest.raises(image_environment.EnvironmentFailed, match=words):
        image_environment.list_installed_packages(str(python))
    if "sleep" in says:
        with pytest.raises(image_environment.EnvironmentFailed, match=words):
            image_environment.find_unmet_requirements(str(python), ["six"])


# An engine that is not installed where it is needed is told in one line, with what to do.


def check_ray_without_package() -> None:
    _check_tokens()


def connect_without_dask() -> None:
    pool: Any = object()
    DaskConnection(pool, sky.plugins.dask(), lambda tasks: None).client()


def connect_without_redis() -> None:
    SharedStateConnection("p", "token", "authority", lambda: ("127.0.0.1", 1)).get_client()


@pytest.mark.parametrize(
    ("needed", "message"),
    [
        (
            check_ray_without_package,
            r"ray is not installed for /.*python.* on this node. .*sky\.Image\(pip=\[\"ray\"\]\)",
        ),
        (
            connect_without_dask,
            r"distributed is not installed on this machine. Install the pool's version: pip install distributed",
        ),
        (connect_without_redis, r"the package redis is not installed on this machine\. Run pip install redis"),
    ],
)
def test_missing_integration_package_error_says_how_to_install_it(
    needed: Callable[[], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_none(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", has_none)
    for package in ("ray", "distributed", "redis"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(sky.PoolError, match=message) as caught:
        needed()
    assert "\n" not in str(caught.value)
