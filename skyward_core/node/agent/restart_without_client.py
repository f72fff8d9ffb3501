"""Restarts of failed runs while no client is connected: the head's agent decides, and the gang's agents start again.

The head withholds the outcomes of its own ranks until all ranks have ended (``call_registry.Call.undecided``). A client
decides about an attempt only with these outcomes. So either the client has them, and the head waits, or the head
decides. All agents have what a restart needs: each call's frame contains its function, its arguments, the budgets, and
the ends of all earlier attempts. The journal stores that frame before the call begins.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from skyward_core.node.agent.agent_state_and_lease import NodeState
from skyward_core.node.agent.call_lifecycle import CallLifecycle
from skyward_core.node.agent.call_registry import Call, RunRecord
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.fail_fast_without_client import CLIENT_GRACE, FailFast, next_peers
from skyward_core.node.agent.gang_and_queue_requests import GangRequests
from skyward_core.node.agent.gang_state import Gang
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.protocol.frame_codec import MAX_SHORT_TEXT, AnyHeader
from skyward_core.protocol.frame_schemas import ATTEMPT_KEYS
from skyward_core.protocol.validators import is_number, is_rank, is_rank_info

if TYPE_CHECKING:
    from skyward_core.model.outcomes import Outcome
    from skyward_core.node.agent.fail_fast_without_client import PeerReport, PeerRequest
    from skyward_core.protocol.frame_types import AgentOutcome, AttemptKeys

HEAD = 0
PEER_PATIENCE = 30.0  # seconds for which the head asks a node that does not answer, before it ends the run
MAX_METRICS_BYTES = 1 << 20  # bytes at the end of a rank's metrics in which the largest step is searched


class UnattendedRestarts:
    """Restarts of one agent's runs without a client. Only the head's agent decides."""

    def __init__(
        self,
        state: NodeState,
        slots: SlotDispatcher,
        clients: ClientRegistry,
        lifecycle: CallLifecycle,
        fail_fast: FailFast,
        gang_requests: GangRequests,
    ) -> None:
        self._state, self._slots, self._clients, self._lifecycle = state, slots, clients, lifecycle
        self._fail_fast, self._gang_requests = fail_fast, gang_requests
        self._working: set[str] = set()
        self._due: dict[tuple[str, int], float] = {}  # run and number of an attempt -> loop time when it may start
        self._unreachable: dict[tuple[str, int], float] = {}  # same key -> loop time since when a node does not answer
        fail_fast.answer = self._answer

    # -- decision, on the head -----------------------------------------------------------------------------

    def check(self) -> None:
        """Decide about runs whose ranks on the head have ended without a client."""
        if self._state.config.node != HEAD or self._state.is_closing:
            return
        for record in self._state.registry.records.values():
            if record.attempt_keys is not None and record.run not in self._working and self._is_undecided(record.run):
                self._working.add(record.run)
                self._state.spawn(self._decide(record))

    def _is_undecided(self, run: str) -> bool:
        now, calls = asyncio.get_running_loop().time(), self._state.registry.calls_of_run(run)
        return bool(calls) and all(
            call.end is not None
            and call.may_restart_unattended
            and not (call.is_final or call.has_client)
            and now - call.owner_lost_at >= CLIENT_GRACE
            for call in calls
        )

    async def _decide(self, record: RunRecord) -> None:
        follows = False
        try:
            follows = await self._try_decide(record)
        finally:  # even after an error, because withheld outcomes keep the machine busy
            self._working.discard(record.run)
            if not follows:
                self._lifecycle.release_all(record.run)

    async def _try_decide(self, record: RunRecord) -> bool:
        """Decide about a run, and start its next attempt if it is due. Return False if no attempt follows."""
        run, loop = record.run, asyncio.get_running_loop()
        nodes = record.nodes or list(range(self._state.config.nodes))
        if self._state.gang.members != record.nodes or (len(nodes) > 1 and self._fail_fast.peers is None):
            return False
        answers = await self._ask(nodes, {"step": "report", "run": run})
        reports = [each for each in (self._report(run), *answers) if each is not None]
        if len(reports) < len(nodes):
            since = self._unreachable.setdefault((run, record.attempt), loop.time())
            return loop.time() - since < PEER_PATIENCE
        self._unreachable.pop((run, record.attempt), None)
        if any(each["client"] or each["active"] for each in reports):
            return True
        attempts = [keys for each in reports if (keys := each["attempt"]) is not None]
        if len(attempts) < len(reports):
            return False  # a node has no call of the run
        latest = max(attempts, key=lambda keys: keys["number"])
        if not ATTEMPT_KEYS(latest) or self._state.registry.is_cancelled(run):
            return False
        if any(each["preempted"] for each in reports):
            return False  # the ranks have saved, and only a client can request another machine
        keys, pause = self._next_attempt(latest, reports, record.total)
        if keys is None:
            return False
        due = self._due.setdefault((run, keys["number"]), loop.time() + pause)
        if loop.time() < due or not self._is_gang_idle(run) or not self._gang_requests.lock.try_hold():
            return True
        try:
            return await self._start_attempt(run, nodes, keys)
        finally:
            self._gang_requests.lock.end_hold()

    @staticmethod
    def _next_attempt(latest: AttemptKeys, reports: list[PeerReport], total: int) -> tuple[AttemptKeys | None, float]:
        """Return the next attempt according to the policy, or None, and the pause before it in seconds."""
        from dataclasses import replace  # agents import dataclasses and typing late

        from skyward_core.model import restart_policy as policy
        from skyward_core.model.root_cause import root_cause

        ended = sorted((each for report in reports for each in report["ends"]), key=lambda each: each.get("at", 0.0))
        outcomes = [_read_outcome(each) for each in ended]
        cause = root_cause(outcomes)
        if cause is None or len(outcomes) < total or not any(each.get("begun") for each in ended):
            return None, 0.0
        ends = [policy.AttemptEnd.from_keys(keys) for keys in latest.get("ends", ())]
        steps = [end.progress for end in ends] + [report["step"] for report in reports]
        progress = max((step for step in steps if step is not None), default=None)
        end = policy.describe_end(latest["number"], cause, outcomes, progress)
        limits = policy.RestartLimits(latest["restarts"], latest.get("error_restarts", 0))
        decision = policy.decide_restart([*ends, end], limits)
        if not decision.restarts:
            return None, 0.0
        end = replace(end, reason=decision.reason, at=ended[-1].get("at", 0.0))
        keys = policy.attempt_keys(end.number + 1, limits, [*ends, end])
        keys["unattended"] = True
        return keys, decision.pause

    def _is_gang_idle(self, run: str) -> bool:
        """Check whether no other run uses the gang, which the next attempt replaces."""
        calls = self._state.registry.calls.values()
        return not any(call.is_gang_call and call.end is None and call.run != run for call in calls)

    async def _ask(self, nodes: Iterable[int], request: PeerRequest) -> list[PeerReport | None]:
        """Send a request to all nodes of the gang except for this one. Return their answers, or None for each."""
        return await asyncio.gather(*(self._fail_fast.ask(node, request) for node in nodes if node != HEAD))

    # -- start of an attempt -------------------------------------------------------------------------------

    async def _start_attempt(self, run: str, nodes: list[int], keys: AttemptKeys) -> bool:
        """Start an attempt on all nodes. Return False if no attempt can follow."""
        answers = await self._ask(nodes, {"step": "prepare", "run": run})
        if None in answers or not self._is_undecided(run):  # a client has taken over, or a node is lost
            return True
        others = (each["ports"] for each in answers if each is not None)
        ports = dict(zip(nodes, [self._gang_requests.reserve_rank_ports(), *others], strict=True))
        info = dict(self._state.gang.info)
        # A peer's place is its node, unless the gang has only some of the nodes.
        info["peers"] = [
            {**peer, "ports": ports[nodes[peer["node"]]]} for peer in info["peers"] if peer["node"] < len(nodes)
        ]
        info["head_port"] = self._gang_requests.reserve_rendezvous()
        epoch = self._gang_requests.next_epoch()
        request: PeerRequest = {"step": "begin", "run": run, "epoch": epoch, "info": info, "attempt": keys}
        self._due.pop((run, keys["number"]), None)
        for call in self._state.registry.calls_of_run(run):
            call.is_superseded = True  # a client that connects from now on continues with the next attempt
        # The other nodes begin first, because this node forgets the key of the old epoch when it begins.
        begun = [answer is not None and answer["begun"] for answer in await self._ask(nodes, request)]
        if not self._begin(request):
            return False
        if not all(begun):
            self._fail_fast.stop_everywhere(run)
        return True

    def _begin(self, request: PeerRequest) -> bool:
        """Begin an attempt on this node with new processes. Return whether this node has the calls of the run."""
        gang, run, epoch = self._state.gang, request["run"], request["epoch"]
        calls = self._state.registry.calls_of_run(run)
        if not calls or any(call.end is None for call in calls):
            return False
        header: AnyHeader = {"epoch": epoch, "info": request["info"], "hooks": gang.has_hooks}
        header |= {"apps": gang.has_app_hooks, "joins": gang.is_joined, "secrets": gang.secrets}
        peers = self._fail_fast.peers
        self._gang_requests.set_up(Gang.from_header(header, gang.plugins), peers and next_peers(peers, epoch))
        self._clients.send_to_all(self._state.gang.status_frame())
        for call in calls:
            self._start_again(call, epoch, request["attempt"])
        return True

    def _start_again(self, old: Call, epoch: int, attempt: AttemptKeys) -> None:
        """Replace an ended call by the call of the next attempt."""
        registry = self._state.registry
        if old.undecided is not None:
            registry.record_outcome(old, old.undecided)
        registry.drop(old)
        call = Call(old.run, old.index, old.header | {"epoch": epoch, "attempt": attempt}, old.body, old.owner)
        call.is_owner_deciding, call.owner_lost_at = old.is_owner_deciding, old.owner_lost_at
        slot = self._slots.pick_slot(call)
        if registry.add(call):
            self._clients.send_to_watchers({"t": "run"} | registry.records[call.run].to_json())
        slot.enqueue(call)

    # -- requests of the head ------------------------------------------------------------------------------

    def _answer(self, request: PeerRequest) -> PeerReport:
        """Answer an authenticated request of the head."""
        answer: PeerReport = {"nonce": request["nonce"]}
        if request["to"] != self._state.config.node:
            return {"nonce": ""}
        if request["step"] == "notice":
            if is_rank(request["node"]) and is_number(request["left"]):
                self._fail_fast.on_notice(request["node"], request["left"])
            return answer
        if request["step"] == "report":
            return {**answer, **self._report(request["run"])}
        if request["step"] == "prepare":
            return {**answer, "ports": self._gang_requests.reserve_rank_ports()}
        is_valid = is_rank_info(request["info"]) and bool(ATTEMPT_KEYS(request["attempt"]))
        return {**answer, "begun": is_valid and self._begin(request)}

    def _report(self, run: str) -> PeerReport:
        """Return how the calls of a run ended on this node."""
        calls = self._state.registry.calls_of_run(run)
        return {
            "run": run,
            "attempt": max((call.header["attempt"] for call in calls), key=lambda keys: keys["number"], default=None),
            "active": sum(call.end is None for call in calls),
            "client": any(call.has_client for call in calls),
            "ends": [_short_outcome(call.end) for call in calls if call.end is not None],
            "step": self._largest_step(run),
            "preempted": self._state.is_preempted,
        }

    def _largest_step(self, run: str) -> float | None:
        """Return the largest step that the ranks of this node logged in a run; None if there is none."""
        steps: list[float] = []
        for slot in self._slots.slots:
            with suppress(OSError), open(slot.logs.metrics_path, "rb") as file:
                file.seek(max(0, file.seek(0, 2) - MAX_METRICS_BYTES))
                for line in file:
                    with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):  # ranks write it
                        entry = json.loads(line)
                        if entry["run"] == run:
                            steps.append(float(entry["values"]["step"]))
        return max((step for step in steps if abs(step) < float("inf")), default=None)


def _short_outcome(outcome: AgentOutcome) -> AgentOutcome:
    """Return an outcome without the parts that the decision does not need."""
    from skyward_core.model.restart_policy import last_place

    short: AgentOutcome = {**outcome, "summary": None, "last": None, "numbers": {}, "log": {}}
    if error := outcome.get("error"):
        place = last_place(error.get("traceback", ""))
        short["error"] = {"type": error["type"], "message": error["message"][:MAX_SHORT_TEXT], "traceback": place}
    return short


def _read_outcome(keys: AgentOutcome) -> Outcome:
    from skyward_core.model.outcomes import ErrorInfo, Outcome

    error = ErrorInfo(**given) if (given := keys.get("error")) else None
    place = keys["i"], keys["rank"], keys["node"], keys["kind"]
    return Outcome(*place, error=error, exit_code=keys.get("exit_code"), signal=keys.get("signal"))
