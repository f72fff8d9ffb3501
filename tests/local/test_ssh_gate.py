"""No node installs before all are synced."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from skyward_core.transport.ssh.host_address import Target
from skyward_core.transport.ssh.ssh_transport import SSHTransport
from skyward_core.transport.transport import StartBarrier
from tests.support.sshd import Host
from tests.support.waiting import until


@pytest.mark.parametrize("fails", [False, True], ids=["all come", "one never comes"])
async def test_setup_waits_until_all_nodes_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    gate, phases = StartBarrier(2), [list[str](), list[str]()]

    async with AsyncExitStack() as stack:
        ways, homes = [], []
        for node in range(2):
            host = Host(tmp_path / f"host{node}")
            await host.start()
            stack.push_async_callback(host.stop)
            known = tmp_path / f"known{node}"
            known.write_text(host.known_line())
            keys = (str(host.client_key),)
            target = Target("127.0.0.1", port=host.port, keys=keys, known_hosts=str(known), config=False)
            ways.append(SSHTransport(target, f"p.{node}"))
            homes.append(host.home)
            stack.push_async_callback(ways[-1].close)

        def prepare(node: int) -> asyncio.Task[Any]:
            config = {"pool": "p", "node": node, "nodes": 2, "idle_timeout": 30.0, "grace": 0.1}
            config["image"] = {"setup": ['touch "$HOME/was-set-up"']}
            report = lambda phase, *rest, **more: phases[node].append(phase)  # noqa: E731
            return asyncio.create_task(ways[node].prepare(config, report, gate))

        first = prepare(0)
        await until(lambda: gate.missing == {1})
        assert phases[0][-1] == "synced" and not first.done()
        assert not (homes[0] / "was-set-up").exists()
        if fails:
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert not (homes[0] / "was-set-up").exists()
            return
        await asyncio.gather(first, prepare(1))
        try:
            assert all((home / "was-set-up").exists() for home in homes)
        finally:
            for way in ways:
                channel = await way.channel()
                await channel.ask("end", folder=way.folder, socket=channel.facts["socket"])
                channel.close()
