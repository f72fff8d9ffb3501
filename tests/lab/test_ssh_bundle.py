"""This library's way to hosts that have never seen it: what they start with first, the rest when nobody waits."""

from __future__ import annotations

import shutil

import skyward_core as sky
from skyward_core.client.session import Session

from . import Host, Lab
from .pools import ssh


@sky.function
def provider_of_its_own() -> str:
    import skyward_core

    return repr(skyward_core.SSH(["a", "b"]))


def has_rest(host: Host) -> bool:
    return any(host.home.glob(".cache/skyward/bundle-*-rest/all.zip"))


def test_a_rank_that_asks_for_the_rest_gets_it_and_who_leaves_the_pool_sends_it_first(pair: Lab) -> None:
    first, second = pair.hosts
    for host in pair.hosts:
        host.wipe_home()
    options = sky.Options(console=False)
    with sky.Compute(provider=ssh(pair, [first]), options=options) as compute:
        assert not has_rest(first)
        (said,) = provider_of_its_own() @ compute
        assert "SSH(" in said and has_rest(first)

    session = Session()
    pool = session.create(sky.PoolSpec(name="left", provider=ssh(pair, [second]), nodes=1, options=options))
    name = pool.result(120).name
    session.detach()
    assert has_rest(second)
    for rest in second.home.glob(".cache/skyward/bundle-*-rest"):
        shutil.rmtree(rest)  # as where the client had been killed before
    with sky.attach(name):
        pass
    assert has_rest(second)
    again = Session()
    assert again.tear_down(name).result(120).ok
    again.detach()
