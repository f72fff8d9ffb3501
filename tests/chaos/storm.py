"""Chaos run: threads that use a pool and check the results, a thread that injects faults, and a final check.

The seed determines all choices. The times of the faults depend on the machine.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import cast

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from tests.support.processes import descendants, read_log

from .beside import Another
from .work import Printed, count, digest_of, double, work

PATIENCE = 50.0  # seconds after the last fault in which everything must have ended, one way or the other
AGENT_REST = 25.0  # seconds that a node's agent is left alone after it was killed: deaths in a row are given up on
PAUSE = (0.1, 0.8)  # seconds between faults


Fault = Callable[[Random], bool]  # says whether there was something to break


@dataclass
class Storm:
    """One chaos run on a pool.

    Args:
        compute: The pool.
        agents: Returns the pids of the pool's agents by node, as seen from here. Their child processes are workers.
        another: Second client.
        seed, seconds: Seed of all choices, and duration.
        more: Additional faults of this kind of pool.

    Attributes:
        wrong: Descriptions of wrong results; empty if the test passes.
        faults: Number of injected faults of each kind.
        ended: Number of calls by kind and outcome.
    """

    compute: sky.Compute
    agents: Callable[[], dict[int, int]]
    another: Another
    seed: int
    seconds: float
    more: Sequence[Fault] = ()
    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    printed: list[Printed] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _killed_at: dict[int, float] = field(default_factory=dict)

    def run(self) -> None:
        """Work and inject faults for the requested time, then run a final call, which must succeed."""
        kinds = (
            self._broadcast, self._some, self._single, self._gather, self._map, self._generate, self._feed,
        )  # fmt: skip
        threads = [
            threading.Thread(target=self._keep, args=(kind, Random(f"{self.seed} {kind.__name__}")), daemon=True)
            for kind in kinds
        ]
        for thread in threads:
            thread.start()
        self._break_things(Random(self.seed))
        self._over.set()
        self.another.close()
        deadline = time.monotonic() + PATIENCE
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if hanging := [thread.name for thread in threads if thread.is_alive()]:
            self.wrong.append(f"hangs: {hanging}")
            faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
            return
        for kind in kinds:
            self._try(kind, Random(f"{self.seed} last"), calm=True)

    # -- work --------------------------------------------------------------------------------------------

    def _keep(self, kind: Callable[[Random], None], random: Random) -> None:
        while not self._over.is_set():
            self._try(kind, random)

    def _try(self, kind: Callable[[Random], None], random: Random, *, calm: bool = False) -> None:
        name = kind.__name__.strip("_")
        try:
            kind(random)
            self.ended[f"{name} done"] += 1
        except sky.RunError as error:
            self.ended[f"{name} failed"] += 1
            if calm:
                self.wrong.append(f"{name} failed without a fault: {error}")
            elif (why := self._unnamed(error)) is not None:
                self.wrong.append(f"{name}: {why}: {error}")
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            self.wrong.append(f"{name} raised {error!r}")

    @staticmethod
    def _unnamed(error: sky.RunError) -> str | None:
        """Return what the report of a failed run lacks: the failed rank, or how it ended."""
        cause = error.root_cause
        if cause.outcome not in ("exited", "lost"):
            return f"a root cause that is {cause.outcome}"
        if not cause.message:
            return "a root cause without a word"
        if cause.rank < 0 and "not started" not in cause.message:
            return "a root cause without a rank"
        return None

    def _broadcast(self, random: Random) -> None:
        token, value = self._token(random), random.randrange(1000)
        pause = random.choice((0.0, 0.01, 0.3))
        found = work(token, value, random.choice((0, 3, 400)), pause) @ self.compute
        self._same([p.value for p in found], [value * value + rank for rank in range(len(found))], "broadcast")
        self.printed += found

    def _some(self, random: Random) -> None:
        """Broadcast on some of the nodes, beside other runs or after them."""
        token, value, nodes = self._token(random), random.randrange(1000), random.choice((1, 2))
        named = sorted(random.sample(range(3), nodes)) if random.random() < 0.5 else None
        call = work(token, value, random.choice((0, 3)), random.choice((0.0, 0.2)))
        found = call.with_nodes(named or nodes) @ self.compute
        self._same([p.value for p in found], [value * value + rank for rank in range(nodes)], "on some nodes")
        # Logs are those of the pool's ranks; among others, a call does not know which one it is.
        self.printed += [replace(p, rank=named[p.rank]) for p in found] if named else []

    def _single(self, random: Random) -> None:
        token, value = self._token(random), random.randrange(1000)
        found = work(token, value, random.choice((1, 50)), random.choice((0.0, 0.05))) >> self.compute
        self._same(found.value - found.rank, value * value, "single")
        self.printed.append(found)

    def _gather(self, random: Random) -> None:
        values = [random.randrange(1000) for _ in range(random.choice((3, 40)))]
        tasks = [work(self._token(random), value, 2, 0.001) for value in values]
        found = cast(Sequence[Printed], sky.gather(*tasks) >> self.compute)
        self._same([p.value - p.rank for p in found], [value * value for value in values], "gather")
        self.printed += found

    def _map(self, random: Random) -> None:
        upto = random.choice((5, 200))
        found = list(self.compute.map(double, range(upto)))
        self._same(found, [2 * number for number in range(upto)], "map")

    def _feed(self, random: Random) -> None:
        """Stream the values of a local generator to a task."""
        upto, size = random.choice(((5, 10), (100, 2000), (12, 100_000)))
        pause = random.choice((0.0, 0.01))
        fed = hashlib.sha256()

        def values() -> Iterator[bytes]:
            for number in range(upto):
                time.sleep(pause)
                data = bytes([number % 251]) * size
                fed.update(data)
                yield data

        found = digest_of(values()) >> self.compute
        self._same(found, (upto, fed.hexdigest()), "values that were fed")

    def _generate(self, random: Random) -> None:
        upto, size = random.choice(((5, 10), (60, 2000), (12, 100_000)))
        seen = 0
        for number, data in count(upto, random.choice((0.0, 0.01)), size) >> self.compute:
            if number != seen or data != bytes([number % 251]) * size:
                self.wrong.append(f"generator: got {number} where {seen} was due")
                return
            seen += 1
        self._same(seen, upto, "values of a generator that ended well")

    def _same(self, got: object, expected: object, what: str) -> None:
        if got != expected:
            self.wrong.append(f"{what}: got {got!r:.200}, expected {expected!r:.200}")

    @staticmethod
    def _token(random: Random) -> str:
        return f"t{random.getrandbits(48):012x}"

    # -- faults ------------------------------------------------------------------------------------------

    def _break_things(self, random: Random) -> None:
        ends_at = time.monotonic() + self.seconds
        own = (self._kill_worker, self._stop_worker, self._kill_agent, self._stop_agent, self._kill_node)
        while time.monotonic() < ends_at:
            time.sleep(random.uniform(*PAUSE))
            fault = random.choice((*own, self._trouble_beside, *self.more))
            if fault(random):
                self.faults[fault.__name__.strip("_")] += 1

    def _a_worker(self, random: Random) -> int | None:
        agents = self.agents()
        pids = descendants(random.choice(sorted(agents.values()))) if agents else []
        return random.choice(sorted(pids)) if pids else None

    def _kill_worker(self, random: Random) -> bool:
        return _send(self._a_worker(random), signal.SIGKILL)

    def _stop_worker(self, random: Random) -> bool:
        return _freeze(self._a_worker(random), random.uniform(0.1, 1.0))

    def _stop_agent(self, random: Random) -> bool:
        agents = self.agents()
        return _freeze(random.choice(sorted(agents.values())) if agents else None, random.uniform(0.1, 2.0))

    def _an_agent(self, random: Random) -> int | None:
        """Return an agent that may be killed, because its node has not lost one recently."""
        now = time.monotonic()
        agents = {n: pid for n, pid in self.agents().items() if now - self._killed_at.get(n, -1e9) > AGENT_REST}
        if not agents:
            return None
        node = random.choice(sorted(agents))
        self._killed_at[node] = now
        return agents[node]

    def _kill_agent(self, random: Random) -> bool:
        return _send(self._an_agent(random), signal.SIGKILL)

    def _kill_node(self, random: Random) -> bool:
        """Kill an agent and all its child processes at the same moment."""
        agent = self._an_agent(random)
        return agent is not None and any([_send(pid, signal.SIGKILL) for pid in (agent, *descendants(agent))])

    def _trouble_beside(self, random: Random) -> bool:
        self.another.trouble()
        return True

    # -- the account -------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Fail the test if any result was wrong, or if nothing was tried."""
        report = f"seed {self.seed}; faults {dict(self.faults)}; calls {dict(self.ended)}"
        assert not self.wrong + self.another.problems, "\n".join([report, *self.wrong, *self.another.problems])
        kinds = ("broadcast", "some", "single", "gather", "map", "generate", "feed")
        # On a slow machine, the only call of a kind during the storm may have met a fault.
        assert all(self.ended[f"{kind} done"] + self.ended[f"{kind} failed"] > 1 for kind in kinds), report
        receipt = self.compute.receipt
        assert receipt is not None and receipt.ok and "did not arrive" not in str(receipt.notes), f"{report}; {receipt}"

    def account(self) -> None:
        """Check that each line of each returned call is in its run's log, once and in order, and in no other log."""
        ledger = Ledger()
        logs: dict[tuple[str, int], bytes] = {}
        for each in self.printed:
            key = (each.run, each.rank)
            if key not in logs:
                logs[key] = read_log(ledger, *key)
            marked = f"{each.run} {each.token} ".encode()
            lines = [line for line in logs[key].splitlines(keepends=True) if line.startswith(marked)]
            if hashlib.sha256(b"".join(lines)).hexdigest() != each.digest:
                where = f"the log of {each.token}, run {each.run} rank {each.rank}"
                self.wrong.append(
                    f"{where}, is not what it printed: {len(lines)} of its lines among {logs[key]!r:.300}"
                )
        for (run, rank), data in logs.items():
            if strangers := [line for line in data.splitlines() if line and not line.startswith(run.encode())]:
                self.wrong.append(f"the log of run {run}, rank {rank}, holds {strangers[0]!r:.80}")


def _freeze(pid: int | None, seconds: float) -> bool:
    if not _send(pid, signal.SIGSTOP):
        return False
    time.sleep(seconds)
    _send(pid, signal.SIGCONT)
    return True


def _send(pid: int | None, number: int) -> bool:
    if pid is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
