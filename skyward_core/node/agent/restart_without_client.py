"""Restarts of failed runs while no client is connected: the head's agent decides, and the gang's agents restart.

The head withholds the outcomes of its own ranks until all ranks have ended (``call_registry.Call.undecided``). A client
decides about an attempt only with these outcomes. So either the client has these outcomes, and the head waits, or the
head decides. All agents can restart a call, because the call's frame contains its function, its arguments, the number
of restarts allowed, and the ends of all earlier attempts. The journal stores this frame before the call begins.

Heartbeats (``peer_heartbeats``) decide which nodes are lost, while the other ranks may still wait for them. The next
attempt runs on the remaining nodes, if the pool allows a smaller gang. Otherwise the run ends here, and the reason is
recorded for clients: the run's own client continues the run when it reconnects.

All ranks must continue from the same checkpoint. So before the next attempt, nodes fetch the files in the folders of
``sky.checkpoint_dir()`` that other nodes have saved. They use the certificates of the last client.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.call_lifecycle import CallLifecycle
from skyward_core.node.agent.call_registry import Call, RunRecord
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.fail_fast_without_client import CLIENT_GRACE, FailFast
from skyward_core.node.agent.file_transfer_supervisor import PeerTransfers
from skyward_core.node.agent.gang_and_queue_requests import GangRequests
from skyward_core.node.agent.gang_state import Gang, next_peers
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.node.agent.worker_processes import run_in_thread
from skyward_core.protocol.frame_codec import MAX_SHORT_TEXT, AnyHeader, Header
from skyward_core.protocol.frame_schemas_and_size_limits import ATTEMPT_KEYS

if TYPE_CHECKING:
    from skyward_core.model.outcomes_states_and_alerts import Outcome
    from skyward_core.protocol.frame_types import AgentOutcome, AttemptKeys, PeerReportKeys, PeerRequestKeys, SavedKeys

HEAD = 0
PEER_PATIENCE = 30.0  # seconds for which the head asks a node that does not answer, before the head ends the run
MAX_EXCHANGED_FILES = 500  # maximum number of a run's checkpoint files on a node, because one message lists them
# bytes at the end of a rank's metrics file in which its agent searches the largest training step
MAX_METRICS_BYTES = 1 << 20
HEARD_SECONDS = 2.0  # maximum seconds since the last heartbeat of a node for its agent to count as running
NO_AGENT = "its agent has ended"
ONE_WITNESS = f"it has not answered node 0 for {PEER_PATIENCE:.0f} s, and one witness proves no loss"


class UnattendedRestarts:
    """Restarts of one agent's runs without a client. Only the head's agent decides."""

    def __init__(
        self, state: NodeState, slots: SlotDispatcher, clients: ClientRegistry, lifecycle: CallLifecycle,
        fail_fast: FailFast, gang_requests: GangRequests, transfers: PeerTransfers,
    ) -> None:  # fmt: skip
        self._state, self._slots, self._clients, self._lifecycle = state, slots, clients, lifecycle
        self._fail_fast, self._gang_requests, self._transfers = fail_fast, gang_requests, transfers
        self._fetching: dict[str, asyncio.Task[None]] = {}  # run -> download of the checkpoints that this node lacks
        self._working: set[str] = set()
        # (run, attempt number) -> earliest start of the attempt, by the event loop's clock
        self._due: dict[tuple[str, int], float] = {}
        # (run, attempt number, node) -> time by the event loop's clock since which the node has not answered
        self._unreachable: dict[tuple[str, int, int], float] = {}
        # (run, attempt number) -> largest training step that the attempt logged, and whether it saved a checkpoint
        self._progress: dict[tuple[str, int], tuple[float | None, bool]] = {}
        fail_fast.answer = self._answer

    # -- decision, on the head -----------------------------------------------------------------------------

    def check(self) -> None:
        """Decide whether runs without a client restart, once their ranks on the head have ended.

        If these ranks still run but nodes are lost, stop the ranks, because they may wait for the lost nodes.
        """
        calls = self._state.registry.calls.values()
        if not any(call.may_restart_unattended for call in calls):
            self._transfers.on_client_gone(None)
        if self._state.config.node != HEAD or self._state.is_closing:
            return
        for record in self._state.registry.records.values():
            if record.attempt_keys is None or record.run in self._working or not self._is_without_client(record.run):
                continue
            if all(call.end is not None for call in self._state.registry.calls_of_run(record.run)):
                self._working.add(record.run)
                self._state.spawn(self._decide(record))
            elif self._find_lost(record):
                self._stop_waiting_ranks(record.run)

    def _is_without_client(self, run: str) -> bool:
        now, calls = asyncio.get_running_loop().time(), self._state.registry.calls_of_run(run)
        return bool(calls) and all(
            call.may_restart_unattended
            and not (call.is_final or call.has_client)
            and now - call.owner_lost_at >= CLIENT_GRACE
            for call in calls
        )

    def _nodes_of(self, record: RunRecord) -> list[int]:
        return record.nodes or list(range(self._state.config.nodes))

    def _find_lost(self, record: RunRecord) -> Mapping[int, str]:
        """Return each lost node of a run with the evidence for its loss. A node stays lost until the attempt ends."""
        heartbeats = self._fail_fast.heartbeats
        if heartbeats is not None and self._state.gang.members == record.nodes:
            # imported late, because few agents judge other nodes
            from skyward_core.node.agent.peer_heartbeats import judge_nodes

            for node, verdict in judge_nodes(self._nodes_of(record), heartbeats.witnesses()).items():
                if verdict.state == "lost":
                    record.lost.setdefault(node, verdict.text)
        return record.lost

    def _stop_waiting_ranks(self, run: str) -> None:
        """Stop the ranks of this node that wait for lost nodes."""
        if self._fail_fast.peers is not None and self._fail_fast.peers.get("fail_fast", True):
            self._fail_fast.stop_everywhere(run)

    async def _decide(self, record: RunRecord) -> None:
        follows = False
        try:
            follows = await self._try_decide(record)
        finally:  # The head releases withheld outcomes even after an error, because they keep the machine in use.
            self._working.discard(record.run)
            if not follows:
                self._lifecycle.release_all(record.run)
                if record.last_end is not None:
                    self._clients.send_to_watchers({"t": "run"} | record.to_json())

    async def _try_decide(self, record: RunRecord) -> bool:
        """Decide whether a run restarts, and start its next attempt when due. Return False if no attempt follows."""
        run, loop, nodes = record.run, asyncio.get_running_loop(), self._nodes_of(record)
        if self._state.gang.members != record.nodes or (len(nodes) > 1 and self._fail_fast.peers is None):
            return False
        away = dict(self._find_lost(record))
        answers = await self._ask([node for node in nodes[1:] if node not in away], {"step": "report", "run": run})
        away |= {node: await self._explain_silence(record, node) for node, each in answers.items() if each is None}
        if "" in away.values():
            return True  # It is not known yet why a node does not answer.
        reports = [await self._report(run), *(each for each in answers.values() if each is not None)]
        if any(each["client"] for each in reports):
            return True
        if any(each["active"] for each in reports):
            if away:
                self._stop_waiting_ranks(run)
            return True
        attempts = [keys for each in reports if (keys := each["attempt"]) is not None]
        if len(attempts) < len(reports):
            return False  # Some node has no call of the run.
        latest = max(attempts, key=lambda keys: keys["number"])
        if not ATTEMPT_KEYS(latest) or self._state.registry.is_cancelled(run):
            return False
        keys, chosen, pause = self._next_attempt(record, latest, reports, away)
        if keys is None:
            return False
        due = self._due.setdefault((run, keys["number"]), loop.time() + pause)
        if loop.time() < due or not self._is_gang_idle(run):
            return True
        if reason := await self._copy_checkpoints(run, chosen) if len(chosen) > 1 else "":
            record.last_end = {**keys["ends"][-1], "reason": f"only a client can copy the checkpoints: {reason}"}
        if reason != "":
            return reason is None
        if not self._gang_requests.lock.try_hold():
            return True
        try:
            return await self._start_attempt(run, chosen, keys)
        finally:
            self._gang_requests.lock.end_hold()

    async def _explain_silence(self, record: RunRecord, node: int) -> str:
        """Return why a node does not answer; "" if that is not known yet."""
        if reason := self._find_lost(record).get(node, ""):
            return reason
        # The node's agent may run although it is unreachable, because a firewall can refuse connections in either
        # direction.
        heartbeats, has_no_agent = self._fail_fast.heartbeats, await self._fail_fast.has_no_agent(node)
        seen = () if heartbeats is None else heartbeats.witnesses()
        age = min((each.age for each in seen if each.node == node), default=PEER_PATIENCE)
        if has_no_agent and (heartbeats is None or (heartbeats.has_left(node) and age >= HEARD_SECONDS)):
            return NO_AGENT
        now = asyncio.get_running_loop().time()
        since = self._unreachable.setdefault((record.run, record.attempt, node), now)
        if now - since < PEER_PATIENCE:
            return ""
        # A machine that has rebooted refuses the connections of all nodes, and its agent has sent nothing since then.
        others = [each for each in self._nodes_of(record)[1:] if each != node and has_no_agent and age >= PEER_PATIENCE]
        answers = await self._ask(others, {"step": "probe", "run": record.run, "node": node})
        return NO_AGENT if any(each and each.get("refused") for each in answers.values()) else ONE_WITNESS

    def _next_attempt(
        self, record: RunRecord, latest: AttemptKeys, reports: Sequence[PeerReportKeys], away: Mapping[int, str]
    ) -> tuple[AttemptKeys | None, tuple[int, ...], float]:
        """Return the next attempt according to the restart policy, its nodes, and the seconds until it may start.

        If no attempt follows, returns None instead of the attempt, and records the reason.
        """
        from dataclasses import replace  # imported late, because dataclasses would delay each agent's start

        from skyward_core.model import restart_policy as policy
        from skyward_core.model.root_cause import root_cause

        nodes = self._nodes_of(record)
        ended = sorted((each for report in reports for each in report["ends"]), key=lambda each: each.get("at", 0.0))
        outcomes = [_read_outcome(each) for each in ended]
        outcomes += [each for node, why in away.items() for each in self._lost_outcomes(nodes, node, why)]
        cause = root_cause(outcomes)
        if cause is None or len(outcomes) < record.total or not any(each.get("begun") for each in ended):
            return None, (), 0.0
        ends = [policy.AttemptEnd.from_keys(keys) for keys in latest.get("ends", ())]
        steps = [end.progress for end in ends] + [report["step"] for report in reports]
        progress = max((step for step in steps if step is not None), default=None)
        preempted = any(report["preempted"] for report in reports)
        end = policy.describe_end(latest["number"], cause, outcomes, progress, preempted=preempted)
        end = replace(end, has_saved=any(report.get("saved") for report in reports))
        budgets = latest["restarts"], latest.get("error_restarts", 0), latest.get("preemption_restarts")
        limits = policy.RestartLimits(*budgets)
        decision = policy.decide_restart([*ends, end], limits)
        least = latest.get("least_nodes")
        chosen, why = policy.place_attempt(nodes, away, None if ONE_WITNESS in away.values() else least)
        if preempted:  # The ranks saved their state for a preemption. Only a client can replace the preempted machine.
            chosen, why = (), "a machine is preempted"
        reason = f"{decision.reason} {why}".strip() if chosen else f"only a client can replace lost nodes: {why}"
        end = replace(end, reason=reason if decision.restarts else decision.reason, at=ended[-1].get("at", 0.0))
        if not (decision.restarts and chosen):
            record.last_end = end.to_keys() if end.reason else None
            return None, (), 0.0
        keys = policy.attempt_keys(end.number + 1, limits, [*ends, end], least)
        keys["unattended"] = True
        return keys, chosen, decision.pause

    def _lost_outcomes(self, nodes: Sequence[int], node: int, reason: str) -> list[Outcome]:
        """Return an outcome for each rank of a lost node."""
        from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome

        each, error = self._state.config.ranks_per_node, ErrorInfo("NodeLost", f"node {node} is gone: {reason}")
        first = nodes.index(node) * each
        return [Outcome(first + local, node * each + local, node, "lost", error=error) for local in range(each)]

    def _is_gang_idle(self, run: str) -> bool:
        """Check whether no other run uses the gang. The next attempt of this run replaces the gang."""
        calls = self._state.registry.calls.values()
        return not any(call.is_gang_call and call.end is None and call.run != run for call in calls)

    async def _ask(self, nodes: Sequence[int], request: Header) -> dict[int, PeerReportKeys | None]:
        """Send a request to the agents of nodes. Return each node's answer; None if it did not answer."""
        answers = await asyncio.gather(*(self._fail_fast.ask(node, request) for node in nodes))
        return dict(zip(nodes, answers, strict=True))

    # -- checkpoints -------------------------------------------------------------------------------------------

    async def _copy_checkpoints(self, run: str, nodes: Sequence[int]) -> str | None:
        """Let the nodes of the next attempt fetch the checkpoints that they lack.

        Returns:
            "" if each node has all files, None if the head must ask again, otherwise the reason of a failure.
        """
        from skyward_core.node.agent.output_checkpoint_and_source_files import find_missing_checkpoints

        reports = await self._ask(nodes[1:], {"step": "saved", "run": run}) | {HEAD: await self._list_saved(run)}
        places = {node: address for node, address, _ in (self._fail_fast.peers or {"nodes": ()})["nodes"]}
        listed: dict[int, Sequence[SavedKeys]] = {}
        for node, report in reports.items():
            if report is None or report.get("active"):
                return None
            if error := report.get("error"):
                return f"node {node}: {error}"
            port = report["port"]
            listed[node] = [{**file, "host": places[node], "port": port} for file in report["files"]]
        missing = find_missing_checkpoints(listed)
        for node, files in missing.items():
            if node == HEAD:
                await self._list_saved(run, files)
            else:
                await self._ask([node], {"step": "saved", "run": run, "files": files})
        return None if missing else ""

    async def _list_saved(self, run: str, missing: Sequence[SavedKeys] = ()) -> PeerReportKeys:
        """Return the checkpoints of a run on this node, and the port at which other nodes can fetch them.

        ``missing``: checkpoints that this node fetches first.
        """
        from skyward_core.node.agent.output_checkpoint_and_source_files import list_checkpoints

        if missing and run not in self._fetching:
            self._fetching[run] = asyncio.create_task(self._fetch(missing))
        if (fetching := self._fetching.get(run)) is not None:
            if not fetching.done():
                return {"active": 1}
            del self._fetching[run]
            if error := fetching.exception():
                return {"error": str(error)}
        names = {call.header.get("checkpoints", "") for call in self._state.registry.calls_of_run(run)}
        files = await run_in_thread(list_checkpoints, self._state.config.cwd, names)
        if len(files) > MAX_EXCHANGED_FILES:
            return {"error": f"nodes exchange at most {MAX_EXCHANGED_FILES} checkpoint files without a client"}
        return {"files": files, "port": self._transfers.retained_port}

    async def _fetch(self, files: Sequence[SavedKeys]) -> None:
        """Fetch checkpoints from other nodes into the ranks' working folder.

        Raises:
            OSError: If a node cannot send a file, or this node cannot store it.
        """
        from skyward_core.node.agent.output_checkpoint_and_source_files import restore_file
        from skyward_core.runtime.instance_info_and_attempt import CHECKPOINTS
        from skyward_core.util.content_hash import hash_bytes

        config = self._state.config
        for file in files:
            if not file["path"].startswith(f"{CHECKPOINTS}/") or not file["port"]:
                raise OSError(f"{file['host']} cannot send {file['path']!r:.80} without a client")
            name, output = hash_bytes(json.dumps(file).encode()), {"path": file["path"], "version": file["version"]}
            place, size = (file["host"], file["port"]), file["size"]
            request: AnyHeader = {"t": "pull", "hash": name, "size": size, "from": place, "output": output}
            if error := (await self._transfers.pull(None, request)).get("error"):
                raise OSError(error)
            await run_in_thread(restore_file, config.cwd, config.blobs / name, size, file["path"], file["at"])

    # -- start of an attempt -------------------------------------------------------------------------------

    async def _start_attempt(self, run: str, nodes: tuple[int, ...], keys: AttemptKeys) -> bool:
        """Start a run's next attempt on the given nodes. Return False if no attempt can follow."""
        others = nodes[1:]
        answers = await self._ask(others, {"step": "prepare", "run": run})
        if None in answers.values() or not self._is_without_client(run):
            # A client has connected and decides instead, or a node is lost.
            return True
        answers[HEAD] = self._prepare()
        info = dict(self._state.gang.info)
        # ``peer["node"]`` is an index into the gang's members, which are all nodes unless the gang is smaller.
        members = info.get("members") or range(self._state.config.nodes)
        addresses = {members[peer["node"]]: peer for peer in info["peers"] if peer["node"] < len(members)}
        ports = [(addresses[node], each["ports"]) for node in nodes if (each := answers[node]) is not None]
        info["peers"] = [{**peer, "node": place, "ports": own} for place, (peer, own) in enumerate(ports)]
        if len(nodes) < len(members):
            world = len(nodes) * self._state.config.ranks_per_node
            info |= {"members": list(nodes), "total_nodes": len(nodes), "world_size": world}
            info["total_accelerators"] = sum(each["accelerators"] for each in answers.values() if each is not None)
        info["head_port"] = self._gang_requests.reserve_rendezvous()
        epoch = self._gang_requests.next_epoch()
        request: Header = {"step": "begin", "run": run, "epoch": epoch, "info": info, "attempt": keys}
        self._due.pop((run, keys["number"]), None)
        for call in self._state.registry.calls_of_run(run):
            call.is_superseded = True  # A client that connects from now on joins the next attempt.
        # Start the attempt on the other nodes first: this node's requests need the key of the old epoch, which it
        # forgets when it starts.
        begun = [answer is not None and answer["begun"] for answer in (await self._ask(others, request)).values()]
        if not self._begin(run, epoch, info, keys):
            return False
        if not all(begun):
            self._fail_fast.stop_everywhere(run)
        return True

    def _begin(self, run: str, epoch: int, info: Header, attempt: AttemptKeys) -> bool:
        """Begin a run's next attempt in new processes of this node. Return False if the node cannot restart."""
        gang, calls = self._state.gang, self._state.registry.calls_of_run(run)
        if not calls or any(call.end is None for call in calls):
            return False
        header: AnyHeader = {"epoch": epoch, "info": info, "hooks": gang.has_hooks}
        header |= {"apps": gang.has_app_hooks, "joins": gang.is_joined, "secrets": gang.secrets}
        new, peers = Gang.from_header(header, gang.plugins), self._fail_fast.peers
        self._gang_requests.set_up(new, peers and next_peers(peers, epoch, new.members))
        self._clients.send_to_all(self._state.gang.status_frame())
        for call in calls:
            self._start_again(call, epoch, attempt)
        return True

    def _start_again(self, old: Call, epoch: int, attempt: AttemptKeys) -> None:
        """Replace an ended call by the call of the next attempt."""
        registry = self._state.registry
        if old.undecided is not None:
            registry.record_outcome(old, old.undecided)
        registry.drop(old)
        header: AnyHeader = old.header | {"epoch": epoch, "attempt": attempt}
        if members := self._state.gang.members:
            each, place = self._state.config.ranks_per_node, members.index(self._state.config.node)
            header |= {"nodes": members, "total": len(members) * each, "i": place * each + header["rank"] % each}
        call = Call(old.run, header["i"], header, old.body, old.owner)
        call.is_owner_deciding, call.owner_lost_at = old.is_owner_deciding, old.owner_lost_at
        slot = self._slots.pick_slot(call)
        if registry.add(call):
            self._clients.send_to_watchers({"t": "run"} | registry.records[call.run].to_json())
        slot.enqueue(call)

    # -- requests of the head ------------------------------------------------------------------------------

    async def _answer(self, request: PeerRequestKeys) -> PeerReportKeys:
        """Answer a request of the head's agent, whose signature was verified."""
        run = request["run"]
        if request["step"] == "report":
            return await self._report(run)
        if request["step"] == "prepare":
            return self._prepare()
        if request["step"] == "saved":
            return await self._list_saved(run, request.get("files", ()))
        if request["step"] == "probe":
            return {"refused": await self._fail_fast.has_no_agent(request["node"])}
        return {"begun": self._begin(run, request["epoch"], request["info"], request["attempt"])}

    def _prepare(self) -> PeerReportKeys:
        ports = self._gang_requests.reserve_rank_ports()
        return {"ports": ports, "accelerators": self._state.config.accelerators or 0}

    async def _report(self, run: str) -> PeerReportKeys:
        """Return how the calls of a run ended on this node."""
        calls = self._state.registry.calls_of_run(run)
        active = sum(call.end is None for call in calls)
        attempt = max((call.header["attempt"] for call in calls), key=lambda keys: keys["number"], default=None)
        step, saved = (None, False) if active or attempt is None else await self._find_progress(run, attempt["number"])
        return {
            "attempt": attempt, "active": active, "client": any(call.has_client for call in calls),
            "ends": [_short_outcome(call.end) for call in calls if call.end is not None],
            "step": step, "saved": saved, "preempted": self._state.is_preempted,
        }  # fmt: skip

    async def _find_progress(self, run: str, attempt: int) -> tuple[float | None, bool]:
        """Return the largest training step of an ended attempt, and whether it saved a checkpoint in the folder of
        ``sky.checkpoint_dir()``. A thread reads the files once per attempt.
        """
        # imported late, because few agents look for checkpoints
        from skyward_core.node.agent.output_checkpoint_and_source_files import list_checkpoints

        if (run, attempt) not in self._progress:
            paths = [slot.logs.metrics_path for slot in self._slots.slots]
            step = await run_in_thread(_largest_step, run, paths)
            names = {call.header.get("checkpoints", "") for call in self._state.registry.calls_of_run(run)}
            began = [each["at"] for each in self._state.registry.records[run].began.values()]
            files = await run_in_thread(list_checkpoints, self._state.config.cwd, names) if began else ()
            saved = any(file["at"] > min(began) for file in files)
            self._progress = {(run, attempt): (step, saved)}
        return self._progress[run, attempt]


def _largest_step(run: str, paths: Sequence[str]) -> float | None:
    """Return the largest training step that the ranks of this node logged in a run; None if there is none."""
    steps: list[float] = []
    for path in paths:
        with suppress(OSError), open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - MAX_METRICS_BYTES))
            for line in file:
                with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
                    # User code may have written invalid lines to the file.
                    entry = json.loads(line)
                    if entry["run"] == run:
                        steps.append(float(entry["values"]["step"]))
    return max((step for step in steps if abs(step) < float("inf")), default=None)


def _short_outcome(outcome: AgentOutcome) -> AgentOutcome:
    """Return an outcome without the fields that the restart decision does not need."""
    from skyward_core.model.restart_policy import last_place

    short: AgentOutcome = {**outcome, "summary": None, "last": None, "numbers": {}, "log": {}}
    if error := outcome.get("error"):
        place = last_place(error.get("traceback", ""))
        short["error"] = {"type": error["type"], "message": error["message"][:MAX_SHORT_TEXT], "traceback": place}
    return short


def _read_outcome(keys: AgentOutcome) -> Outcome:
    from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome

    error = ErrorInfo(**given) if (given := keys.get("error")) else None
    place = keys["i"], keys["rank"], keys["node"], keys["kind"]
    return Outcome(*place, error=error, exit_code=keys.get("exit_code"), signal=keys.get("signal"))
