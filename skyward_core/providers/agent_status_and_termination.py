"""State of a pool's agent on a host reached over SSH, and termination of everything that runs on the host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from skyward_core.model.errors import PoolError, Unreachable, UsageError, error_message
from skyward_core.model.machines_checks_and_gpu_use import Machine

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import ReachDone
    from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport

# asyncssh is imported late, because a provider may be created before any code connects to its hosts.

T = TypeVar("T")

CHECK_TIMEOUT = 5.0  # seconds for the connection to each checked host
# seconds for the connection to a host that has stopped answering; callers need the machine's state soon
SILENT_HOST_TIMEOUT = 1.0
END_TIMEOUT = 30.0  # seconds for stopping everything that runs on a host
STATUS_TIMEOUT = 10.0  # seconds for the host's login shell and Python to report the state of the agent
MAX_CONCURRENT_HOSTS = 16  # maximum number of hosts that are checked or ended at the same time


class TransportFactory(Protocol):
    """Function that creates a provider's transport to a machine, given a limit in seconds for connection attempts."""

    def __call__(self, machine: Machine, *, patience: float | None = None) -> SSHTransport: ...


async def update_machine(machine: Machine, way: TransportFactory) -> Machine:
    """Return a machine with the state of its agent and workers.

    :meth:`..ssh.provider.SSH.describe` describes the states.

    Args:
        way: Creates the provider's transport to the machine.
    """
    from skyward_core.transport.ssh.connection import answer_timeout

    folder, answer = machine.extra["folder"], max(STATUS_TIMEOUT, answer_timeout())
    here = next((each for each in _live_transports() if each.folder == folder), None)
    if here is not None and here.is_untouched:
        # nothing of the pool is on the host: the agent's startup failed before it wrote a file there
        return replace(machine, state="gone")
    if here is not None and here.is_up:
        try:
            return await _query_state(here, machine, answer)
        except (PoolError, UsageError, OSError):
            here = here if not here.is_up else None
    fresh = way(machine, patience=SILENT_HOST_TIMEOUT)
    asked = asyncio.ensure_future(_query_state(fresh, machine, SILENT_HOST_TIMEOUT + answer))
    try:
        if here is not None and await _is_silent(machine, here, asked):
            return replace(machine, state="lost")
        return await asked
    except (PoolError, UsageError, OSError) as error:
        return replace(machine, state="unreachable", extra=machine.extra | {"why": error_message(error)})
    finally:
        asked.cancel()
        await fresh.close()


async def update_rented_machine(machine: Machine, way: TransportFactory, login_key: Path) -> Machine:
    """Return a rented machine with the state of its agent and workers. The states "ending" and "gone" become
    "agentless".

    A rented machine costs money even after its agent has ended.

    Args:
        way: Creates the provider's transport to the machine.
        login_key: Private key that opens the machine.
    """
    if not login_key.exists():
        reason = "this machine does not have the login key"
        return replace(machine, state="unreachable", extra=machine.extra | {"why": reason})
    updated = await update_machine(machine, way)
    return replace(updated, state="agentless") if updated.state in ("ending", "gone") else updated


async def end_machine(machine: Machine, way: TransportFactory) -> None:
    """Stop a pool's agent and workers on a host, and remove the pool's folder there.

    If the host does not answer, the agent's lease ends the pool there.

    Args:
        way: Creates the provider's transport to the machine.
    """
    from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import send_bundle

    transport = way(machine, patience=CHECK_TIMEOUT)
    try:
        async with asyncio.timeout(END_TIMEOUT):
            channel = await transport.channel()
            if channel.facts["root"]:
                await send_bundle(channel)
                await channel.ask("end", folder=transport.folder, socket=channel.facts["socket"])
            channel.close()
    except (PoolError, UsageError, OSError):
        # no error, because ``describe`` reports the machine's state, and the agent's lease ends the pool there
        return
    finally:
        await transport.close()


async def gather_bounded(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines, with bounded concurrency."""
    return await asyncio.gather(*_limit_concurrency(work))


async def as_completed_bounded(work: Iterable[Coroutine[Any, Any, T]]) -> AsyncIterator[T]:
    """Yield the results of coroutines as they finish, with bounded concurrency."""
    for result in asyncio.as_completed([*_limit_concurrency(work)]):
        yield await result


async def in_order_bounded(work: Iterable[Coroutine[Any, Any, T]]) -> AsyncGenerator[T]:
    """Yield the results of coroutines in order, with bounded concurrency. Closing the generator cancels the rest."""
    tasks = [asyncio.ensure_future(each) for each in _limit_concurrency(work)]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _limit_concurrency(work: Iterable[Coroutine[Any, Any, T]]) -> Iterator[Coroutine[Any, Any, T]]:
    gate = asyncio.Semaphore(MAX_CONCURRENT_HOSTS)

    async def one(item: Coroutine[Any, Any, T]) -> T:
        async with gate:
            return await item

    return map(one, work)


async def _query_state(transport: SSHTransport, machine: Machine, seconds: float) -> Machine:
    try:
        async with asyncio.timeout(seconds):
            channel = await transport.channel(status=True)
    except TimeoutError as error:
        raise Unreachable(
            f"Host {machine.address} has not reported its state within {seconds:g} s. Check its load, then try again."
        ) from error
    channel.close()
    facts = channel.facts
    if facts["doubted"]:
        raise PoolError(f"Host {machine.address}: {facts['doubted']}. Its state folder is not trusted.")
    if facts["root"] and facts["running"]:
        return machine
    if facts["root"] and facts["left"]:
        return replace(machine, state="orphaned")  # not "ending", because a new agent would resume the pool's runs
    if facts["root"] and facts["orphans"]:
        return replace(machine, state="ending")  # the agent has ended, but some of its processes have not ended yet
    details: dict[str, Any] = {"why": facts.get("ended", ""), "kept": facts.get("kept", {})}
    details |= {"ended": at} if (at := facts.get("ended_at")) else {}
    return replace(machine, state="gone", extra=machine.extra | details)


async def _is_silent(machine: Machine, lost: SSHTransport, asked: asyncio.Future[Machine]) -> bool:
    """Check whether another node of the pool, which this client can reach, cannot connect to the host either.

    Return False as soon as ``asked``, the query to the host, succeeds.
    """
    pool = machine.extra["folder"].rpartition(".")[0]
    peers = [t for t in _live_transports() if t.folder.rpartition(".")[0] == pool and t is not lost and t.is_up]
    if not peers or lost.ssh_address is None:
        return False
    peer = asyncio.ensure_future(_can_reach(peers[0], lost.ssh_address))
    both: list[asyncio.Future[Any]] = [peer, asked]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if asked.done() and asked.exception() is None:
        peer.cancel()
        return False
    try:
        return not await peer
    except (PoolError, OSError):
        # the node cannot be reached either, so probably this client's network is the problem, not the host
        return False


async def _can_reach(transport: SSHTransport, place: tuple[str, int]) -> bool:
    """Check whether one host can connect to the address of another."""
    from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import lend_bundle

    channel = await transport.channel()
    await lend_bundle(channel)
    answer: ReachDone = await channel.ask("reach", places=[place], seconds=SILENT_HOST_TIMEOUT)
    channel.close()
    return answer["reached"] == [True]


def _live_transports() -> list[SSHTransport]:
    """Return the SSH transports of the running event loop."""
    from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport

    loop = asyncio.get_running_loop()
    return [transport for transport in SSHTransport.live if transport.loop is loop]
