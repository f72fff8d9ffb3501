"""A session that leaves while a pool of its own still starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from skyward_core.client.session import Session
from skyward_core.model.errors import Cancelled, Hint, PoolError
from skyward_core.model.specs import Image, Options, PoolSpec
from skyward_core.providers.local.provider import Local
from tests.support.child import Child
from tests.support.cli import Cli
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize("used", [True, False])
def test_the_start_is_over_before_the_ledger_is_closed_and_who_uses_the_pool_goes_on_with_it(
    tmp_path: Path, used: bool
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    setup = f"echo $$ >> {begun!s}; while [ ! -e '{go_on}' ]; do sleep 0.02; done"
    session = Session()
    coming = session.create(
        PoolSpec(
            name="half",
            provider=Local(),
            nodes=2,
            image=Image(setup=(setup,)),
            options=Options(console=False),
        )
    )
    wait_until(lambda: begun.exists() and begun.read_text(), what="the set-up")
    session.detach()
    assert coming.done()
    with pytest.raises(Cancelled, match="half did not start: this client detached"):
        coming.result()
    go_on.touch()
    later = Session()
    (view,) = later.refresh().result(90)
    assert view.state == "unfinished" and "its client exited during startup" in view.detail
    assert view.hint == Hint("down", "half")
    with pytest.raises(PoolError, match="incomplete"):
        later.observe("half").result(90)
    assert len(begun.read_text().split()) == 1, "who only looks sets nothing up"
    if used:
        assert later.attach("half").result(90).state == "up"
        row = later.ledger.find_pool("half")
        assert row is not None and row.state == "up"
    receipt = later.tear_down("half").result(90)
    assert (receipt.created, receipt.ok) == (2, True)
    later.detach()
    assert len(begun.read_text().split()) == 1 + used


BRINGS_UP = """
import sys
import skyward_core as sky
setup = f"echo $$ >> {sys.argv[1]}; while [ ! -e {sys.argv[2]} ]; do sleep 0.02; done"
image = sky.Image(setup=[setup])
with sky.Compute(provider=sky.Local(), name="half", image=image, options=sky.Options(console=False)):
    pass
"""


def test_a_start_whose_process_is_killed_is_listed_as_broken_off_with_what_to_do(cli: Cli) -> None:
    begun, go_on = cli.folder / "begun", cli.folder / "go_on"
    command = [sys.executable, "-c", BRINGS_UP, str(begun), str(go_on)]
    with Child(command, cwd=cli.folder, env=cli.env) as maker:
        wait_until(lambda: begun.exists() and begun.read_text(), what="the set-up")
        assert cli.pools()["half"]["state"] == "starting"
        maker.kill()
        maker.wait()
    go_on.touch()
    assert cli.pools()["half"]["state"] == "unfinished"
    listed = cli("ls")
    assert "half  start incomplete  local" in listed.stdout
    assert "its client exited during startup" in listed.stderr
    assert "tear it down with: skyward-tui down half" in listed.stderr
    assert cli("down", "half", "--yes").returncode == 0
    assert cli.pools() == {}
