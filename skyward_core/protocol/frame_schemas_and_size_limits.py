"""Schemas of all frames, and validation of incoming frames.

A peer may run another release, or be broken or hostile. Each frame is therefore validated before its header is used and
before its body is read. Size limits depend on the kind of the frame, file names contain only plain characters, and
numbers are bounded. Small frames of unknown kinds and unknown keys are accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from skyward_core.protocol.frame_codec import (
    CHUNK_BYTES,
    MAX_EXCEPTION_BYTES,
    MAX_INLINE_BYTES,
    MAX_PLUGINS_BYTES,
    NONE_SUMMARY,
    VERSION,
    Header,
    WireError,
)
from skyward_core.protocol.validators import (
    Checks,
    FrameSchema,
    FrameSchemas,
    dict_of,
    is_address,
    is_blob,
    is_bool,
    is_call_index,
    is_count,
    is_file_name,
    is_integer,
    is_log_name,
    is_metric_summary,
    is_node_place,
    is_node_text,
    is_number,
    is_plain,
    is_port,
    is_rank,
    is_rank_count,
    is_rank_info,
    is_relative_subpath,
    is_run_id,
    is_signature,
    is_span,
    is_stack_frame,
    is_text,
    is_valid_log_name,
    list_of,
    object_of,
    one_of,
    optional,
)

# Kinds of preemption notices. "rebalance": the preemption has become more likely.
NOTICES = ("terminate", "stop", "hibernate", "rebalance")
LONGEST_NOTICE = 24 * 3600.0  # maximum seconds from a preemption notice to its deadline; longer notices are not trusted
PREEMPTED = "Preempted"  # error type in outcomes of ranks that were lost to a preemption
RESULTS_FETCHED = "ResultsFetched"  # error type in outcomes of calls whose results another client has fetched
# message in outcomes of calls that a client stops in order to restart their run on more nodes
GROWTH_STOP = "stopped because the run continues on more nodes"
PREEMPTION_MESSAGE = "preempted: the machine of node {node} was preempted by its provider"


def is_same_deadline(one: float | None, other: float | None) -> bool:
    """Check whether two deadlines by the same clock are about equal, as for one notice. None: unknown deadline."""
    return one is other if one is None or other is None else abs(one - other) < 30


# Requests that older agents do not support. Agents list the supported requests in their welcome frame.
AGENT_FEATURES = ("stacks", "profile", "metrics", "debug", "still", "queue", "save", "heartbeats")
MAX_PEER_BODY_BYTES = 1 << 18
MAX_RUNS_BYTES = 64 << 20  # maximum bytes of the welcome frame, which lists all recorded runs


# Named keys and values of frames. ``tests.protocol_page`` generates a type for each, such as ``ErrorKeys`` for
# ``ERROR_KEYS``. A key whose name ends in "?" is optional.
OUTCOME_KIND = one_of("returned", "raised", "exited", "lost", "collateral")
RUN_KIND = one_of("", "broadcast", "single", "gather", "sweep", "map")
NOTICE_KIND = one_of(*NOTICES)
RESTART_CAUSE = one_of("error", "loss", "preemption", "growth")
LOG_SIZES = dict_of(is_valid_log_name, is_count)
LOG_SPANS = dict_of(is_valid_log_name, is_span)
SUMMARY_KEYS = object_of(
    {"type": is_text, "text": is_text, "json?": is_plain, "is_json?": is_bool, "size?": is_count},
    only=True,
    usual=NONE_SUMMARY,
)
ERROR_KEYS = object_of({"type": is_text, "message": is_text, "traceback?": is_text}, only=True)
PLUGIN_ERROR_KEYS = object_of(
    {"type": is_text, "message": is_text, "traceback?": is_text, "plugin?": is_text}, only=True
)
GANG_PEERS = object_of({"key": is_text, "nodes": list_of(is_node_place), "fail_fast?": is_bool, "heartbeats?": is_bool})
FETCH_STATUS: Checks = {"error?": is_text, "unreachable?": is_bool}
CREDENTIAL_KEYS: Checks = {"authority": is_text, "certificate": is_text, "key": is_text}
TIMESTAMP: Checks = {"at?": is_number}  # Unix time in seconds by the node's clock
START_OPTIONS: Checks = {"env?": dict_of(is_text, is_text)}
EXIT_STATUS: Checks = {"exit_code?": optional(is_integer), "signal?": optional(is_rank)}
END_DETAILS: Checks = {"kind": OUTCOME_KIND, "error?": optional(ERROR_KEYS), **EXIT_STATUS}
RESULT_FIELDS: Checks = {
    "summary?": optional(SUMMARY_KEYS),
    "error?": optional(ERROR_KEYS),
    "seconds?": is_number,
    "file?": is_file_name,
    "size?": is_count,
    "log?": LOG_SPANS,
    "items?": is_count,
    "last?": optional(SUMMARY_KEYS),
    "begun?": is_bool,
    "numbers?": dict_of(is_text, is_metric_summary),
    **EXIT_STATUS,
}
# Keys that describe the end of a run's attempt, as in ``model.restart_policy.AttemptEnd``.
ATTEMPT_END_KEYS = object_of(
    {
        "number": is_count,
        "cause": RESTART_CAUSE,
        "message": is_text,
        "signature": is_text,
        "progress": optional(is_number),
        "lost": list_of(is_rank),
        "reason": is_text,
        "at": is_number,
        "saved?": is_bool,
    }
)
RUN_KEYS: Checks = {
    "run": is_run_id,
    "function": is_text,
    "kind": RUN_KIND,
    "total": is_call_index,
    "opened_at": is_number,
    "over?": is_bool,
    "nodes?": list_of(is_rank),
    "job?": is_text,
    "more?": is_bool,
    "attempt?": is_count,
    "ends?": list_of(ATTEMPT_END_KEYS),
    "unattended?": is_bool,
    "last_end?": ATTEMPT_END_KEYS,
}
RANK_PHASE_KEYS: Checks = {"rank": is_rank, "phase": is_text, "age": is_number, "left?": is_number}
NOTICE_KEYS: Checks = {"kind": NOTICE_KIND, "left": optional(is_number)}
OUTPUT_KEYS: Checks = {"path": is_relative_subpath, "version": is_file_name}
CLEARED_KEYS = object_of({"path": is_relative_subpath, "version?": is_file_name})
WRITTEN_KEYS = object_of(OUTPUT_KEYS, {"size": is_count, "at": is_number}, only=True)
QUEUE_REQUEST_KEYS: Checks = {"run": is_run_id, "name": is_text, "nodes": is_count, "only": list_of(is_rank)}
QUEUED_RUN_KEYS = object_of(QUEUE_REQUEST_KEYS, {"since": is_number, "who": is_text})
THREAD_KEYS = object_of(
    {"name": is_text, "frames": list_of(is_stack_frame), "gil": is_bool, "child?": is_count}, only=True
)
RANK_STACKS_KEYS = object_of(
    {
        "rank": is_rank,
        "number": is_count,
        "at": one_of("gone", "starting", "idle", "running", "ending"),
        "runs": list_of(is_run_id),
        "pid?": is_count,
        "how?": one_of("py-spy", "signal"),
        "why?": is_text,
        "exception?": is_text,
        "answers?": is_bool,
        "threads?": list_of(THREAD_KEYS),
    }
)
RUN_CALL_COUNTS = object_of({"calls": is_call_index, "active": is_call_index, "total": is_call_index})
GANG_CALL_COUNTS = object_of(
    # kept: id of the job for whose next step the node is reserved; "" for none
    {"active": is_call_index, "ended": is_call_index, "total": is_call_index, "kept": is_text}
)

# Keys that several kinds of frames share.
_CALL: Checks = {"run": is_run_id, "i": is_call_index}
_PLACE: Checks = {"rank": is_rank, "node": is_rank}
_REQUEST_ID: Checks = {"id": is_count}
_NODES = list_of(is_rank)
_MODULES = dict_of(is_text, is_text)
_UNFETCHED = dict_of(is_run_id, is_count)
_SILENCES: Checks = {"epoch": is_count, "silences": dict_of(is_node_text, is_number)}
_PLUGIN_FLAGS: Checks = {
    "hooks?": is_bool,
    "apps?": is_bool,
    "joins?": is_bool,
    "alone?": is_bool,
    "secrets?": list_of(is_text),
}
_SET_UP: Checks = {"epoch?": is_count, **_PLUGIN_FLAGS}
_WANT: Checks = {**_CALL, "arg": is_count, "next": is_count, "until": is_count, "again?": is_bool}
_BEGAN: Checks = {**_CALL, **_PLACE, "log?": LOG_SIZES, **TIMESTAMP}
_OUTCOME: Checks = {
    **_CALL,
    **_PLACE,
    "kind": OUTCOME_KIND,
    "ends?": is_text,
    "attempt?": is_count,
    **RESULT_FIELDS,
    **TIMESTAMP,
}
_ITEM: Checks = {
    **_CALL,
    "seq": is_count,
    "summary": optional(SUMMARY_KEYS),
    "rank": is_rank,
    "node?": is_rank,
    **RESULT_FIELDS,
    **TIMESTAMP,
}
# Attempt of a run that may restart: its number from 1, the allowed restarts after losses and errors, and the end of the
# previous attempt: cause, message, and lost ranks. `ends`: the ends of all earlier attempts. `unattended`: whether
# agents started the attempt without a client. `least_nodes`: minimum number of nodes of an attempt.
ATTEMPT_KEYS = object_of(
    {
        "number": is_count,
        "restarts": is_count,
        "cause": is_text,
        "message": is_text,
        "lost": list_of(is_rank),
        "error_restarts?": is_count,
        "preemption_restarts?": is_count,
        "ends?": list_of(ATTEMPT_END_KEYS),
        "unattended?": is_bool,
        "least_nodes?": is_count,
    }
)
_CALL_KEYS: Checks = {
    **_CALL,
    "fn": is_blob,
    "args": is_blob,
    "kind?": RUN_KIND,
    "rank?": optional(is_rank),
    "timeout?": optional(is_number),
    "name?": is_text,
    "total?": is_call_index,
    "epoch?": is_count,
    "gang?": is_bool,
    "stream?": is_bool,
    "fed?": is_bool,
    "script?": is_bool,
    "alone?": is_bool,
    "headless?": is_bool,
    "next?": is_count,
    "taken?": is_count,
    "nodes?": _NODES,
    "job?": is_text,
    "more?": is_bool,
    "items?": is_count,
    "attempt?": ATTEMPT_KEYS,
    "checkpoints?": is_run_id,
}
CALL_KEYS = object_of(_CALL_KEYS)
REMEMBERED_RUN = object_of(
    RUN_KEYS,
    {
        "outcomes": list_of(object_of({"t": one_of("outcome")}, _OUTCOME)),
        "began": list_of(object_of({"t": one_of("began")}, _BEGAN)),
        "items?": list_of(object_of({"t": one_of("item")}, _ITEM)),
        "returned": is_call_index,
        "active?": is_call_index,
    },
)

# Frames from an agent to clients.
FROM_AGENT: FrameSchemas = {
    # Answer to "hello": the state of the agent, and its record of each run.
    "welcome": FrameSchema(
        {
            "version": is_count,
            "epoch": is_count,
            "broken": is_text,
            "node": is_rank,
            "address": is_text,
            "ranks_per_node": is_rank_count,
            "lease": optional(is_number),
            "runs": list_of(REMEMBERED_RUN),
            "now?": is_number,
            "phases?": list_of(object_of(RANK_PHASE_KEYS)),
            "unfetched?": _UNFETCHED,
            "modules?": _MODULES,
            "cwd?": is_text,
            "notices?": list_of(object_of(NOTICE_KEYS)),
            "knows?": list_of(is_text),
            "pool?": is_text,
            "pid?": is_count,
            "idle_timeout?": is_number,
            "spent?": is_bool,
            "members?": _NODES,
            "queue?": list_of(QUEUED_RUN_KEYS),
        },
        head=MAX_RUNS_BYTES,
    ),
    # Part of a log file. The body is the content.
    "log": FrameSchema(
        {"f": is_log_name, "at": is_count},
        body=CHUNK_BYTES,
    ),
    # Part of a file that the client requested with "fetch" or "output". The body is the content.
    "data": FrameSchema(
        _REQUEST_ID,
        {"last": is_bool, "error?": is_text, "sha256?": is_file_name},
        body=CHUNK_BYTES,
    ),
    # A call has ended. The body is the pickled exception, or the pickled result if it is small. A large result is in
    # `file`.
    "outcome": FrameSchema(
        _OUTCOME,
        body=MAX_EXCEPTION_BYTES,
    ),
    # A generator yielded a value. The body is the pickled value if it is small. A large value is in `file`.
    "item": FrameSchema(
        _ITEM,
        body=MAX_INLINE_BYTES,
    ),
    # A call needs the values of a streamed argument from number `next` to number `until` - 1.
    "want": FrameSchema(
        _WANT,
    ),
    # The function of a call has started.
    "began": FrameSchema(_BEGAN),
    # A call was rejected because its gang no longer exists or, if `spent` is true, no longer accepts new calls. The
    # client sends the call again.
    "stale": FrameSchema(
        _CALL,
        {"why?": is_text, "spent?": is_bool},
        TIMESTAMP,
    ),
    # Another client has started a run, or a map of another client has ended (`over`).
    "run": FrameSchema(RUN_KEYS, TIMESTAMP),
    # The gang of this epoch accepts no further broadcast.
    "gang": FrameSchema(
        {"epoch": is_count, "broken": is_text, "spent?": is_bool, "members?": _NODES},
    ),
    # Files of the script's modules that workers have loaded. A hash states the content of a file when it was loaded.
    "modules": FrameSchema(
        {"files": _MODULES},
    ),
    # A rank's process is in a long-running phase, such as importing modules or waiting for other ranks.
    "phase": FrameSchema(
        RANK_PHASE_KEYS,
    ),
    # The client now holds the gang lock.
    "granted": FrameSchema(
        {"unclean": is_bool},
    ),
    # Another client holds the gang lock, which this client has requested.
    "held": FrameSchema({"by": is_text}),
    # Runs that wait for nodes, in order.
    "queue": FrameSchema(
        {"waiting": list_of(QUEUED_RUN_KEYS)},
    ),
    # A run of this client is the first in the queue, and may start.
    "turn": FrameSchema({"run": is_run_id}),
    # Another client has stopped a run of this client that waited in the queue.
    "dropped": FrameSchema(
        {"run": is_run_id, "by": is_text},
    ),
    # Answer to "ping".
    "pong": FrameSchema(
        {
            "lease": optional(is_number),
            "unfetched?": _UNFETCHED,
            "processor?": dict_of(is_text, is_number),
            "id?": is_count,
        },
    ),
    # Answer to a request that has an `id`, unless the request has an answer of another kind.
    "known": FrameSchema(
        _REQUEST_ID,
        FETCH_STATUS,
        {"forgotten?": is_bool, "joins?": is_bool, "call?": CALL_KEYS},
        body=MAX_PLUGINS_BYTES,
    ),
    # Answer to "form": address of the rendezvous of the next epoch.
    "formed": FrameSchema(
        _REQUEST_ID,
        {"head_addr": is_text, "head_port": is_port},
    ),
    # Last frame of a connection.
    "bye": FrameSchema(
        {"logs": LOG_SIZES, "unfetched?": _UNFETCHED},
    ),
    # The pool is being torn down.
    "ending": FrameSchema({"by": is_text, "why": is_text}),
    # Preemption notice: the provider is about to take the machine back. After "rebalance", a preemption has only become
    # more likely.
    "notice": FrameSchema(
        NOTICE_KEYS,
    ),
    # Warning or error for the user of the client.
    "error": FrameSchema({"message": is_text}),
    # Samples of machine metrics. The body is lines of JSON, one per sample.
    "metrics": FrameSchema(
        {"at": is_count, "why?": is_text},
        body=CHUNK_BYTES,
    ),
    # Another client waits for the gang lock, which this client holds.
    "wanted": FrameSchema(),
}

# Requests of clients to an agent.
FROM_CLIENT: FrameSchemas = {
    # Send the log files from the offsets in `cursors` on, and new bytes as the files grow.
    "tail": FrameSchema({"cursors?": LOG_SIZES}),
    # Run a function. The body contains the blobs of the function and its arguments that are small.
    "call": FrameSchema(
        _CALL_KEYS,
        body=2 * MAX_INLINE_BYTES,
    ),
    # Source text of code that pickled functions contain. The body is the compressed text.
    "source": FrameSchema(
        {"hash": is_file_name, "name": is_file_name},
        body=MAX_INLINE_BYTES,
    ),
    # Take over a run, or resume it after a reconnection: send the outcomes of its calls to this client. If the calls
    # may restart, the answer contains one of them.
    "claim": FrameSchema(
        {"run": is_run_id, "next?": is_count, "taken?": is_count, "id?": is_count, "decides?": is_bool},
        answer={"calls": list_of(is_call_index)},
    ),
    # The client has received the outcomes of these calls, so the agent can delete them. null means all calls of a run.
    "ack": FrameSchema(
        {"calls": dict_of(is_run_id, optional(list_of(is_call_index)))},
    ),
    # The client has received all values of a generator whose numbers are below `next`.
    "credit": FrameSchema(_CALL, {"next": is_count}),
    # Value of a streamed argument, or a part of this value. If `ends` is "error", the body is the exception that the
    # iterator raised.
    "fed": FrameSchema(
        _CALL,
        {"arg": is_count, "seq": is_count, "part": is_count, "more?": is_bool, "ends?": one_of("end", "error")},
        body=MAX_INLINE_BYTES,
    ),
    # Stop all calls of a run, or only call `i`: SIGTERM, then SIGKILL after `grace` seconds. `why` may add to this:
    #
    # - "cancel": No further call of the run starts.
    # - "save": No further call of the run starts, and the ranks have `grace` seconds to save.
    # - "growth": The ranks have `grace` seconds to save. Then the client starts the next attempt.
    # - "preemption": The grace is extended until the machine ends.
    "stop": FrameSchema(
        {"run": is_run_id, "i?": is_call_index, "grace?": is_number, "why?": is_text, "break?": is_count},
    ),
    # Send the file with a result, as "data" frames.
    "fetch": FrameSchema(
        _REQUEST_ID,
        {"f": is_file_name, "at?": is_count},
    ),
    # List the files that ranks wrote in their working folder during a run, or after a given time, sorted by path.
    "written": FrameSchema(
        _REQUEST_ID,
        {"patterns": list_of(is_text), "run?": is_run_id, "since?": is_number, "after?": is_text},
        answer={"files": list_of(WRITTEN_KEYS), "more": is_count, "folder": is_text},
        may_fail=True,
    ),
    # Move a blob to a path in the working folder of the ranks, unless the ranks have changed the file at this path.
    "restore": FrameSchema(
        _REQUEST_ID,
        {"blob": is_file_name, "size": is_count, "path": is_relative_subpath, "at": is_number, "instead?": is_text},
        {"outdated?": list_of(is_relative_subpath)},
        answer={"written": is_bool},
        may_fail=True,
    ),
    # Delete files in the checkpoint folders of ended runs, because the client has copies of them. Then delete empty
    # folders. A file without `version` was written by "restore". Files that have changed are not deleted.
    "clear": FrameSchema(
        _REQUEST_ID,
        {"folders": list_of(is_relative_subpath), "files": list_of(CLEARED_KEYS)},
    ),
    # Send a file that an answer to "written" listed, as "data" frames, if the file is unchanged. The last of these
    # frames has the SHA-256.
    "output": FrameSchema(
        _REQUEST_ID,
        OUTPUT_KEYS,
        {"at?": is_count},
    ),
    # Return the stacks of all ranks or some ranks. They are read by py-spy or, if permitted, printed by the ranks after
    # a signal.
    "stacks": FrameSchema(
        _REQUEST_ID,
        {"ranks?": list_of(is_rank), "signal?": is_bool},
        answer={"ranks": list_of(RANK_STACKS_KEYS)},
    ),
    # Profile a rank. The body of the answer is the profile in py-spy's raw format.
    "profile": FrameSchema(
        _REQUEST_ID,
        {"rank": is_rank, "seconds": is_number},
    ),
    # Debug a rank at a breakpoint: send `text` to the debugger, or end its input. Without `text` and `eof`, the body of
    # the answer is the output of the debugger, which is sent within a second. A session ends after 15 s without a
    # request.
    "debug": FrameSchema(
        _REQUEST_ID,
        {"rank": is_rank, "who": is_text, "text?": is_text, "eof?": is_bool},
        answer={"over": is_bool},
        may_fail=True,
    ),
    # A rank of another node is paused at a breakpoint. Pause the timeouts of calls, too. If the frame is repeated, the
    # pause becomes longer. Requires an agent that lists this kind in `knows`.
    "still": FrameSchema(
        {"seconds": is_number},
    ),
    # Start the metrics sampler. Send samples from offset `at` on, and new samples as they are measured. Requires an
    # agent that lists this kind in `knows`.
    "metrics": FrameSchema(
        {"at?": is_count},
    ),
    # Listen for file transfers with other nodes and with the client, and use this certificate.
    "peers": FrameSchema(
        _REQUEST_ID,
        CREDENTIAL_KEYS,
        answer={"port": is_port},
        may_fail=True,
    ),
    # Fetch a blob, or a file that ranks wrote, from another node. The file becomes a blob of any free name.
    "pull": FrameSchema(
        _REQUEST_ID,
        {"hash": is_file_name, "size": is_count, "from": optional(is_address), "output?": object_of(OUTPUT_KEYS)},
    ),
    # Delete these blobs. The calls that used them have ended.
    "drop": FrameSchema(_REQUEST_ID, {"blobs": list_of(is_file_name)}),
    # Return a free port for each rank of the node, and a port for failure messages of other nodes.
    "ports": FrameSchema(
        _REQUEST_ID,
        answer={"ports": list_of(is_port), "accelerators": is_count, "line": is_port},
    ),
    # Return the settings of the pool, for a client that adds a node.
    "setup": FrameSchema(
        _REQUEST_ID,
        answer={
            "env": optional(dict_of(is_text, is_text)),
            "known": is_bool,
            "secrets": list_of(is_text),
            "apps": is_bool,
        },
    ),
    # Return the number of calls of each broadcast. The client repairs a broadcast that started on some nodes only.
    "where": FrameSchema(
        _REQUEST_ID,
        answer={"runs": dict_of(is_run_id, RUN_CALL_COUNTS)},
    ),
    # Return the state of the gang, and the number of calls of each of its runs. The client finds free nodes by this.
    "holds": FrameSchema(
        _REQUEST_ID,
        answer={
            "epoch": is_count,
            "broken": is_text,
            "spent": is_bool,
            "members": _NODES,
            "runs": dict_of(is_run_id, GANG_CALL_COUNTS),
        },
    ),
    # Return the seconds since the last sign of life of each node that this node watches. Nodes watch each other during
    # runs that may restart. Requires an agent that lists this kind in `knows`.
    "heartbeats": FrameSchema(
        _REQUEST_ID,
        answer=_SILENCES,
    ),
    # Add a run that needs nodes to the queue. Only node 0 (the head) has a queue.
    "enqueue": FrameSchema(
        QUEUE_REQUEST_KEYS,
        {"since?": is_number},
    ),
    # Remove a run from the queue.
    "dequeue": FrameSchema({"run": is_run_id}),
    # First step of a teardown: stop the ranks within their grace period. The agent keeps running to send their last
    # output, and answers once the ranks have stopped.
    "halt": FrameSchema(
        _REQUEST_ID,
    ),
    # Last step of a teardown: the agent exits.
    "shutdown": FrameSchema(
        {"drop?": list_of(is_run_id), "keep?": is_number},
    ),
    # Set up the ranks for this epoch. The body is the pickled plugins.
    "gang": FrameSchema(
        {"epoch": is_count, "info": is_rank_info, "fresh?": is_bool, "line?": GANG_PEERS},
        _PLUGIN_FLAGS,
        body=MAX_PLUGINS_BYTES,
    ),
    # First frame of a client.
    "hello": FrameSchema(
        {"watch?": is_bool, "observer?": is_bool, "who?": is_text},
    ),
    # A client that connected as an observer uses the pool from now on, and renews the lease.
    "use": FrameSchema(),
    # Notify the ranks that the machine of another node will be preempted.
    "warn": FrameSchema(
        {"node": is_rank, "left": is_number},
    ),
    # Renew the lease and return its remaining time.
    "ping": FrameSchema({"id?": is_count}, answered_by="pong"),
    # Request the gang lock.
    "lock": FrameSchema(),
    # Release the gang lock.
    "unlock": FrameSchema({"unclean?": is_bool}),
    # Reserve a port for the rendezvous of the next epoch. Sent only to the first node of a gang.
    "form": FrameSchema(
        _REQUEST_ID,
        answered_by="formed",
    ),
    # Return a unique number for the next epoch. Sent only to node 0 (the head).
    "number": FrameSchema(
        _REQUEST_ID,
        {"least": is_count},
        answer={"epoch": is_count},
    ),
}

# Frames from workers, and from the process with the plugins' node contexts, to their agent.
FROM_WORKER: FrameSchemas = {
    # First frame of a worker. The body is the pickled plugins. If another agent started the worker, the new agent
    # learns the worker's set-up from this frame.
    "hello": FrameSchema(
        {
            "pid": is_count,
            "phase?": is_text,
            "age?": is_number,
            "handles?": is_bool,
            "state?": one_of("fresh", "entering", "entered"),
            "info?": is_rank_info,
            "modules?": _MODULES,
            "wants?": list_of(object_of({"t": one_of("want")}, _WANT)),
        },
        START_OPTIONS,
        _SET_UP,
        body=MAX_PLUGINS_BYTES,
    ),
    # A call has ended. The body is as in the agent's frame. The agent adds keys, and sends the frame to clients.
    "outcome": FrameSchema(
        _CALL,
        {"kind": OUTCOME_KIND, "unusable?": is_bool, "ends?": is_text, "left?": is_bool, "joined?": is_bool},
        RESULT_FIELDS,
        body=MAX_EXCEPTION_BYTES,
    ),
    # A generator yielded a value. The body is as in the agent's frame. The agent adds keys, and sends the frame to
    # clients.
    "item": FrameSchema(
        _CALL,
        {"seq": is_count},
        RESULT_FIELDS,
        body=MAX_INLINE_BYTES,
    ),
    # A call needs the values of a streamed argument from number `next` to number `until` - 1.
    "want": FROM_AGENT["want"],
    # The worker has begun a long-running phase.
    "phase": FrameSchema({"phase": is_text}),
    # User code has begun or ceased to handle SIGTERM, for example to save a checkpoint.
    "sigterm": FrameSchema({"handles": is_bool}),
    # Files of the script's modules that the worker has loaded. A hash states the content of a file when it was loaded.
    "modules": FrameSchema(
        {"files": _MODULES},
    ),
    # Values to redact from now on.
    "secrets": FrameSchema({"values": list_of(is_text)}),
    # The process enters the `around_app` context of a plugin.
    "entering": FrameSchema({"plugin": is_text}),
    # An `around_app` context could not be entered. The body is the pickled exception.
    "failed": FrameSchema(
        {"error": ERROR_KEYS},
        body=MAX_EXCEPTION_BYTES,
    ),
    # The process is set up for the epoch. Contexts of plugins have been entered or have failed.
    "ready": FrameSchema(
        {"epoch": is_count},
    ),
    # All `around_app` contexts have been entered.
    "entered": FrameSchema(),
}

# A file in the folder of ``sky.checkpoint_dir()`` on a node, and the address from which another node can fetch it.
SAVED_KEYS = object_of(
    {"path": is_text, "version": is_text, "size": is_count, "at": is_number, "copy": is_bool},
    {"host?": is_text, "port?": is_port},
)
# Body of an "attempt" frame, which contains a step of an agent's request, and the keys that each step requires.
PEER_REQUEST_KEYS = object_of(
    {"nonce": is_text, "to": is_rank, "step": is_text, "run?": is_run_id, "node?": is_rank, "left?": is_number},
    {"epoch?": is_count, "info?": is_rank_info, "attempt?": ATTEMPT_KEYS, "files?": list_of(SAVED_KEYS)},
)
PEER_STEPS: Mapping[str, set[str]] = {
    "stop": {"run"},
    "report": {"run"},
    "prepare": {"run"},
    "begin": {"run", "epoch", "info", "attempt"},
    "notice": {"node", "left"},
    "probe": {"run", "node"},
    "saved": {"run"},
}
# Body of a "report" frame, with which an agent answers.
PEER_REPORT_KEYS = object_of(
    {
        "nonce?": is_text,
        "attempt?": optional(ATTEMPT_KEYS),
        "active?": is_count,
        "client?": is_bool,
        "ends?": list_of(object_of({"t": one_of("outcome")}, _OUTCOME)),
        "step?": optional(is_number),
        "saved?": is_bool,
        "preempted?": is_bool,
        "ports?": list_of(is_port),
        "accelerators?": is_count,
        "begun?": is_bool,
        "refused?": is_bool,
        "files?": list_of(SAVED_KEYS),
        "port?": is_count,
        "error?": is_text,
    }
)

# Frames between the agents of a gang. They are authenticated only by their signature, made with the gang's secret key.
PEER_FRAMES: FrameSchemas = {
    # Sign of life during a run that may restart.
    "heartbeat": FrameSchema(
        _SILENCES,
        {"node": is_rank, "count": is_count, "signature": is_signature},
    ),
    # Request about a run without a client. The body is signed JSON. Its `step` is one of these:
    #
    # - "stop": Stop the run.
    # - "report": Report how the ranks ended.
    # - "prepare": Reserve ports.
    # - "begin": Begin the next attempt.
    # - "notice": Let the ranks save, because a machine will be preempted.
    # - "probe": Check whether the machine of another node refuses connections to its agent.
    # - "saved": List the checkpoints of the run. First fetch the given ones; "active" is 1 until all are there.
    "attempt": FrameSchema(
        {"epoch": is_count, "signature": is_signature},
        body=MAX_PEER_BODY_BYTES,
    ),
    # Answer to "attempt". The body is signed JSON.
    "report": FrameSchema({"signature": is_signature}, body=MAX_PEER_BODY_BYTES),
}


_UNKNOWN = FrameSchema(body=MAX_INLINE_BYTES)
_OTHER_RELEASE = {"welcome": FrameSchema({"version": is_count})}


def validate_header(forms: FrameSchemas, header: Header, head: int, body: int) -> None:
    """Validate a frame whose header has been read, before its body is read.

    Args:
        forms: Schemas of the valid kinds.
        header: The header.
        head, body: Length of header and body in bytes.

    Raises:
        WireError: If the frame does not match the schema of its kind.
    """
    kind = header["t"]
    form = forms.get(kind, _UNKNOWN)
    if body > form.body or head > form.head:
        raise WireError(f"frame {kind!r:.40} is too large: {head:,} bytes of header, {body:,} bytes of body")
    if not header.keys() >= form.needs.keys():
        key = min(form.needs.keys() - header.keys())
        raise WireError(f"key {key!r} of frame {kind!r:.40} is missing")
    find = form.checks.get
    for key, value in header.items():
        check = find(key)
        if check is not None and not check(value):
            raise WireError(f"invalid value of key {key!r} of frame {kind!r:.40}: {value!r:.80}")


def validate_agent_frame(header: Header, head: int, body: int) -> None:
    """Validate a frame that an agent sent. In a welcome frame of another release, only the version must be valid."""
    greets = header["t"] == "welcome" and header.get("version") != VERSION
    validate_header(_OTHER_RELEASE if greets else FROM_AGENT, header, head, body)


def validate_answer(asked: str, header: Mapping[str, Any]) -> None:
    """Validate an agent's answer to a request.

    Args:
        asked: The kind of the request.
        header: The header of the answer.

    Raises:
        WireError: If the frame is not a valid answer to the request.
    """
    request = FROM_CLIENT.get(asked, _UNKNOWN)
    if header["t"] != request.answered_by:
        raise WireError(f"frame {header['t']!r} is not an answer to {asked!r}")
    if request.may_fail and "error" in header:
        return
    for key, check in request.answer.items():
        if key not in header or not check(header[key]):
            # Omit the invalid value from the message, because it may be a secret.
            raise WireError(f"invalid type of key {key!r} in an answer to {asked!r}: {type(header.get(key)).__name__}")


def validate_peer_frame(header: Header, head: int, body: int) -> None:
    """Validate a frame of a peer that has not authenticated itself. Reject unknown kinds of frames."""
    if header["t"] not in PEER_FRAMES:
        raise WireError("frame kind not allowed from peers")
    validate_header(PEER_FRAMES, header, head, body)


validate_client_frame = partial(validate_header, FROM_CLIENT)
validate_worker_frame = partial(validate_header, FROM_WORKER)
