"""Search for the value of a secret on hosts and client while ranks use the secret."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import skyward_core as sky
from skyward_core.plugins import Plugin

from . import Lab

PLUGINS_OWN = "plg-" + "NeverShown" * 3
VARIABLE = "var-" + "NorThisOne" * 3
INDEX_KEY = "idx-" + "NeitherThat" * 3
SECRETS = (PLUGINS_OWN, VARIABLE, INDEX_KEY)


class Keys(Plugin):
    name = "keys"

    def secrets(self) -> Sequence[str]:
        return (PLUGINS_OWN,)

    @contextmanager
    def around_process(self, info: sky.InstanceInfo) -> Iterator[None]:
        os.environ["MY_KEY"] = PLUGINS_OWN
        yield


@sky.function
def tell(fails: bool) -> Iterator[dict[str, Any]]:
    shown = {"mine": os.environ["MY_KEY"], "theirs": [os.environ["A_TOKEN"]]}
    print(shown, flush=True)
    yield shown
    if fails:
        raise ValueError(f"refused: {shown}")


@pytest.fixture(autouse=True)
def travels() -> Iterator[None]:
    """Send these functions by value, because hosts do not have this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_ssh_secret_is_neither_on_hosts_nor_on_the_client(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    provider = sky.SSH(
        [host.address for host in lab.hosts[:2]],
        user=lab.user,
        keys=str(lab.key),
        known_hosts=str(lab.known_hosts),
        config=False,
        python=sys.executable,  # it has what the image asks for
    )
    image = sky.Image(
        env={"A_TOKEN": VARIABLE},
        pip=("cloudpickle",),  # there already: it is asked for, and nothing is fetched
        pip_indexes=(sky.PipIndex(url=f"https://me:{INDEX_KEY}@index.example/simple"),),
        setup=(f"echo fetched from https://me:{INDEX_KEY}@index.example",),
    )
    events: list[object] = []
    with sky.Compute(provider=provider, image=image, plugins=[Keys()]) as compute:
        compute.pool.news.subscribe(events.append, None)
        ranks = [list(values) for values in tell(False) @ compute]
        assert [values[0]["mine"] for values in ranks] == [PLUGINS_OWN] * 2, "values are the person's own"
        for host in lab.hosts[:2]:
            assert not [line for line in host.processes().values() if shows(line)]
            printed = {}
            for path in host.home.rglob("*"):
                with suppress(FileNotFoundError):  # what a client has taken is removed while we look
                    if not path.is_file():
                        continue
                    if "spool" in path.parts:
                        printed[path] = path.stat().st_mode
                    else:
                        assert not shows(path.read_bytes()), path
            assert printed
            assert not [path for path, mode in printed.items() if mode & 0o077]
        with pytest.raises(sky.RunError, match="refused") as caught:
            for values in tell(True) @ compute:
                list(values)
        runs = list(compute.pool.view.runs.values())
        phases = [node.detail for node in compute.pool.view.nodes]
    for what in (*capfd.readouterr(), repr(events), repr(runs), repr(phases), str(caught.value)):
        assert not shows(what)
    files = [path for path in (tmp_path / "sky").rglob("*") if path.is_file()]
    assert any("r000" in path.name for path in files)
    # Yielded values of the failed run that no reader consumed may have been downloaded. They belong to the user, and
    # only the user can read them.
    unread = [path for path in files if path.suffix == ".item" and path.parent.name == "results"]
    modes = {path: (mode(path.parent), mode(path)) for path in unread}
    assert all(found == (0o700, 0o600) for found in modes.values()), modes
    assert not [path for path in files if path not in unread and shows(path.read_bytes())]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def shows(what: str | bytes) -> bool:
    data = what.encode() if isinstance(what, str) else what
    return any(secret.encode() in data for secret in SECRETS)
