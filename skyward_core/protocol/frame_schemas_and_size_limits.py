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
LONGEST_NOTICE = 24 * 3600.0  # seconds until the deadline; longer notices are not trusted
PREEMPTED = "Preempted"  # error type in outcomes of ranks lost to a preemption
GROWTH_STOP = "stopped because the run continues on more nodes"  # message of calls that a client stops to add nodes
PREEMPTION_MESSAGE = "preempted: the machine of node {node} was preempted by its provider"


def is_same_deadline(one: float | None, other: float | None) -> bool:
    """Check whether two deadlines by the same clock belong to the same notice. None is an unknown deadline."""
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
    {"type": is_text, "text": is_text, "json?": is_plain, "is_json?": is_bool, "size?": is_count}, only=True
)
ERROR_KEYS = object_of({"type": is_text, "message": is_text, "traceback?": is_text}, only=True)
PLUGIN_ERROR_KEYS = object_of(
    {"type": is_text, "message": is_text, "traceback?": is_text, "plugin?": is_text}, only=True
)
GANG_PEERS = object_of({"key": is_text, "nodes": list_of(is_node_place), "fail_fast?": is_bool, "heartbeats?": is_bool})
FETCH_STATUS: Checks = {"error?": is_text, "unreachable?": is_bool}
CREDENTIAL_KEYS: Checks = {"authority": is_text, "certificate": is_text, "key": is_text}
TIMESTAMP: Checks = {"at?": is_number}  # Unix time by the node's clock
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
# End of a run's attempt, as in ``model.restart_policy.AttemptEnd``.
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
    # kept: job for whose next step the node is reserved; "" for none
    {"active": is_call_index, "ended": is_call_index, "total": is_call_index, "kept": is_text}
)

# Keys shared by several kinds of frames.
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
_CREDIT: Checks = {**_CALL, "next": is_count}
_FED: Checks = {
    **_CALL,
    "arg": is_count,
    "seq": is_count,
    "part": is_count,
    "more?": is_bool,
    "ends?": one_of("end", "error"),
}
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
# Attempt of a run that may restart: its number from 1, the allowed restarts after losses and errors, and the end of
# the previous attempt: cause, message, and lost ranks. `ends`: the ends of all earlier attempts. `unattended`: agents
# started the attempt without a client. `least_nodes`: minimum number of nodes of a smaller attempt.
ATTEMPT_KEYS = object_of(
    {
        "number": is_count,
        "restarts": is_count,
        "cause": is_text,
        "message": is_text,
        "lost": list_of(is_rank),
        "error_restarts?": is_count,
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
    "welcome": FrameSchema(
        "Answer to a client's hello: state of the agent, and all recorded runs.",
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
    "log": FrameSchema(
        "Part of a log file from byte `at` on; the body is the content.",
        {"f": is_log_name, "at": is_count},
        body=CHUNK_BYTES,
    ),
    "data": FrameSchema(
        'Part of a file requested by "fetch" or "output"; the body is the content.',
        _REQUEST_ID,
        {"last": is_bool, "error?": is_text, "sha256?": is_file_name},
        body=CHUNK_BYTES,
    ),
    "outcome": FrameSchema(
        "A call has ended. The body is a small result or the pickled exception; a large result is in the file `file`. "
        "`ends`: why the worker accepts no further call.",
        _OUTCOME,
        body=MAX_EXCEPTION_BYTES,
    ),
    "item": FrameSchema(
        "A generator yielded value number `seq`, which is in the body or in the file `file`.",
        _ITEM,
        body=MAX_INLINE_BYTES,
    ),
    "want": FrameSchema(
        "A call needs values of a streamed argument, from `next` to `until`. `again`: earlier values may be lost and "
        "must be sent again.",
        _WANT,
    ),
    "began": FrameSchema(
        "The function of a call has started; `log` is the size of each log file at that time.", _BEGAN
    ),
    "stale": FrameSchema(
        "A call was rejected, because its gang no longer exists or (`spent`) accepts only earlier calls. The client "
        "sends it again.",
        _CALL,
        {"why?": is_text, "spent?": is_bool},
        TIMESTAMP,
    ),
    "run": FrameSchema("Another client has started a run, or a map is `over`.", RUN_KEYS, TIMESTAMP),
    "gang": FrameSchema(
        "The gang of this epoch accepts no further broadcast, and the reason. `spent`: running calls continue. "
        "`members`: nodes of the gang if not all.",
        {"epoch": is_count, "broken": is_text, "spent?": is_bool, "members?": _NODES},
    ),
    "modules": FrameSchema(
        "Files of the script's modules that workers have loaded, with their hashes at that time.",
        {"files": _MODULES},
    ),
    "phase": FrameSchema(
        "Long-running phase of a rank's process, such as importing or waiting for other ranks. `left`: seconds until "
        "the process is killed.",
        RANK_PHASE_KEYS,
    ),
    "granted": FrameSchema(
        "The client now holds the gang lock. `unclean`: the previous holder disconnected while holding it.",
        {"unclean": is_bool},
    ),
    "held": FrameSchema("Another client holds the gang lock.", {"by": is_text}),
    "queue": FrameSchema(
        "Runs that wait for nodes, in order: the number of nodes (0 for all) or the required nodes (`only`), and the "
        "waiting time's start by the head's clock.",
        {"waiting": list_of(QUEUED_RUN_KEYS)},
    ),
    "turn": FrameSchema("It is the turn of this waiting run of the client.", {"run": is_run_id}),
    "dropped": FrameSchema(
        "Another client has stopped this waiting run of the client.",
        {"run": is_run_id, "by": is_text},
    ),
    "pong": FrameSchema(
        "Answer to a ping: remaining seconds of the lease, bytes of unfetched results by run, and processor seconds of "
        "ranks that run calls.",
        {
            "lease": optional(is_number),
            "unfetched?": _UNFETCHED,
            "processor?": dict_of(is_text, is_number),
            "id?": is_count,
        },
    ),
    "known": FrameSchema(
        "Answer to any request with an `id` whose answer has no kind of its own.",
        _REQUEST_ID,
        FETCH_STATUS,
        {"forgotten?": is_bool, "joins?": is_bool, "call?": CALL_KEYS},
        body=MAX_PLUGINS_BYTES,
    ),
    "formed": FrameSchema(
        'Answer to "form": rendezvous address of the next epoch.',
        _REQUEST_ID,
        {"head_addr": is_text, "head_port": is_port},
    ),
    "bye": FrameSchema(
        "Last frame of a connection, with the final size of each log file. `unfetched`: bytes of results that no "
        "client has confirmed, by run.",
        {"logs": LOG_SIZES, "unfetched?": _UNFETCHED},
    ),
    "ending": FrameSchema("The pool is being torn down: by which client, and why.", {"by": is_text, "why": is_text}),
    "notice": FrameSchema(
        "Preemption notice: the provider takes the machine back in `left` seconds, if known. `rebalance`: a preemption "
        "has become more likely.",
        NOTICE_KEYS,
    ),
    "error": FrameSchema("Warning or error for the client.", {"message": is_text}),
    "metrics": FrameSchema(
        "Machine metrics from byte `at` on; the body is lines of JSON, one per sample. `why`: the reason why no "
        "samples arrive at present.",
        {"at": is_count, "why?": is_text},
        body=CHUNK_BYTES,
    ),
    "wanted": FrameSchema("Another client waits for the gang lock."),
}

# Requests of clients to an agent.
FROM_CLIENT: FrameSchemas = {
    "tail": FrameSchema(
        "Send the log files from the given offsets on, and continue as they grow.", {"cursors?": LOG_SIZES}
    ),
    "call": FrameSchema(
        "Run a function. Names and sizes of the blobs with function and arguments; small blobs are in the body.",
        _CALL_KEYS,
        body=2 * MAX_INLINE_BYTES,
    ),
    "source": FrameSchema(
        "Source of code that calls send by value; the body is the compressed text.",
        {"hash": is_file_name, "name": is_file_name},
        body=MAX_INLINE_BYTES,
    ),
    "claim": FrameSchema(
        "Take over a run, or resume it after a reconnect: send the outcomes of its calls to this client. `decides`: "
        "the client also decides about restarts of the run. The answer has one of its calls, if they may restart.",
        {"run": is_run_id, "next?": is_count, "taken?": is_count, "id?": is_count, "decides?": is_bool},
        answer={"calls": list_of(is_call_index)},
    ),
    "ack": FrameSchema(
        "The client has received these outcomes, which can be deleted; null means all calls of the run.",
        {"calls": dict_of(is_run_id, optional(list_of(is_call_index)))},
    ),
    "credit": FrameSchema("The client has received all values of a generator below `next`.", _CREDIT),
    "fed": FrameSchema(
        "Value `seq` of a streamed argument, or a part of it that is followed by `more`. `ends`: there are no further "
        'values; with "error", the body is the exception to raise.',
        _FED,
        body=MAX_INLINE_BYTES,
    ),
    "stop": FrameSchema(
        "Stop the calls of a run, or only call `i`: SIGTERM, then SIGKILL after `grace` seconds (default: the pool's). "
        "`break`: epoch of the gang that ends. "
        'After "cancel" no further call of the run starts. "save" cancels, too, and ranks get `grace` seconds to save. '
        '"growth" lets them save, too, and the client starts the next attempt. '
        '"preemption" extends the grace until the machine ends.',
        {"run": is_run_id, "i?": is_call_index, "grace?": is_number, "why?": is_text, "break?": is_count},
    ),
    "fetch": FrameSchema(
        'Send the file of a result from an offset on, as "data" frames.',
        _REQUEST_ID,
        {"f": is_file_name, "at?": is_count},
    ),
    "written": FrameSchema(
        "List files that ranks wrote in their working folder during a run or since a time, sorted by path. `after`: "
        "last path of the previous answer.",
        _REQUEST_ID,
        {"patterns": list_of(is_text), "run?": is_run_id, "since?": is_number, "after?": is_text},
        answer={"files": list_of(WRITTEN_KEYS), "more": is_count, "folder": is_text},
        may_fail=True,
    ),
    "restore": FrameSchema(
        "Move a blob to a path in the working folder of the ranks, unless the ranks have changed the file there. "
        "`at`: Unix time of its last change. `instead`: version of a file of the ranks that may be replaced, because "
        "it is cut off. `outdated`: earlier copies to delete. The answer states whether the file was written.",
        _REQUEST_ID,
        {"blob": is_file_name, "size": is_count, "path": is_relative_subpath, "at": is_number, "instead?": is_text},
        {"outdated?": list_of(is_relative_subpath)},
        answer={"written": is_bool},
        may_fail=True,
    ),
    "clear": FrameSchema(
        "Delete files in the checkpoint folders of ended runs, which the client has, and folders that are empty then. "
        'A file without `version` is a copy by "restore". Files that have changed stay.',
        _REQUEST_ID,
        {"folders": list_of(is_relative_subpath), "files": list_of(CLEARED_KEYS)},
    ),
    "output": FrameSchema(
        'Send a listed file from an offset on, if it is unchanged, as "data" frames; the last has the SHA-256.',
        _REQUEST_ID,
        OUTPUT_KEYS,
        {"at?": is_count},
    ),
    "stacks": FrameSchema(
        "Return the stacks of all or some ranks, by py-spy or, if permitted, by a signal.",
        _REQUEST_ID,
        {"ranks?": list_of(is_rank), "signal?": is_bool},
        answer={"ranks": list_of(RANK_STACKS_KEYS)},
    ),
    "profile": FrameSchema(
        "Profile a rank for some seconds; the answer's body is the profile in py-spy's raw format.",
        _REQUEST_ID,
        {"rank": is_rank, "seconds": is_number},
    ),
    "debug": FrameSchema(
        "Debug a rank at a breakpoint: send `text` to the debugger, or end its input (`eof`). Without either, the "
        "answer's body is the debugger's output, sent within a second. `who` identifies the session, which ends after "
        "15 s without a request.",
        _REQUEST_ID,
        {"rank": is_rank, "who": is_text, "text?": is_text, "eof?": is_bool},
        answer={"over": is_bool},
        may_fail=True,
    ),
    "still": FrameSchema(
        "A rank of another node is paused at a breakpoint, so pause the timeouts of calls for this many seconds, or "
        "longer if the frame is repeated; 0 resumes them. Requires an agent that lists this kind in `knows`.",
        {"seconds": is_number},
    ),
    "metrics": FrameSchema(
        "Start the metrics sampler and send samples from an offset on, continuing with new ones. Requires an agent "
        "that lists this kind in `knows`.",
        {"at?": is_count},
    ),
    "peers": FrameSchema(
        "Listen for file transfers with other nodes and the client, using this certificate.",
        _REQUEST_ID,
        CREDENTIAL_KEYS,
        answer={"port": is_port},
        may_fail=True,
    ),
    "pull": FrameSchema(
        "Fetch a blob from another node. `output`: a file of the other node's ranks that has this content.",
        _REQUEST_ID,
        {"hash": is_file_name, "size": is_count, "from": optional(is_address), "output?": object_of(OUTPUT_KEYS)},
    ),
    "drop": FrameSchema("Delete these blobs, whose calls have ended.", _REQUEST_ID, {"blobs": list_of(is_file_name)}),
    "ports": FrameSchema(
        "Return a free port for each rank of the node, and the port (`line`) for failure notifications of other nodes; "
        "0 if the node cannot listen.",
        _REQUEST_ID,
        answer={"ports": list_of(is_port), "accelerators": is_count, "line": is_port},
    ),
    "setup": FrameSchema(
        "Return the settings of the pool, for a client that adds a node.",
        _REQUEST_ID,
        answer={
            "env": optional(dict_of(is_text, is_text)),
            "known": is_bool,
            "secrets": list_of(is_text),
            "apps": is_bool,
        },
    ),
    "where": FrameSchema(
        "Return the number of calls of each gang run.",
        _REQUEST_ID,
        answer={"runs": dict_of(is_run_id, RUN_CALL_COUNTS)},
    ),
    "holds": FrameSchema(
        "Return the gang and the state of its runs.",
        _REQUEST_ID,
        answer={
            "epoch": is_count,
            "broken": is_text,
            "spent": is_bool,
            "members": _NODES,
            "runs": dict_of(is_run_id, GANG_CALL_COUNTS),
        },
    ),
    "heartbeats": FrameSchema(
        "Return the seconds since the last sign of life of the gang's nodes that this node watches during a run that "
        "may restart. Requires an agent that lists this kind in `knows`.",
        _REQUEST_ID,
        answer=_SILENCES,
    ),
    "enqueue": FrameSchema(
        "Head only: queue a run that needs nodes. `since`: start of its waiting time if it was queued before.",
        QUEUE_REQUEST_KEYS,
        {"since?": is_number},
    ),
    "dequeue": FrameSchema("Remove a run from the queue.", {"run": is_run_id}),
    "halt": FrameSchema(
        "Tear-down: stop the ranks within their grace period, and keep running to send their last output. Answered "
        "once they have stopped.",
        _REQUEST_ID,
    ),
    "shutdown": FrameSchema(
        "Exit. `drop`: runs whose results are discarded; `keep`: seconds to retain other results.",
        {"drop?": list_of(is_run_id), "keep?": is_number},
    ),
    "gang": FrameSchema(
        "Set up the ranks for this epoch, in new processes if `fresh`; the body is the pickled plugins. `line`: "
        "addresses of the gang's nodes, the signing key, and whether to use it for `fail_fast` and `heartbeats`.",
        {"epoch": is_count, "info": is_rank_info, "fresh?": is_bool, "line?": GANG_PEERS},
        _PLUGIN_FLAGS,
        body=MAX_PLUGINS_BYTES,
    ),
    "hello": FrameSchema(
        "First frame of a client. An `observer` does not renew the lease.",
        {"watch?": is_bool, "observer?": is_bool, "who?": is_text},
    ),
    "use": FrameSchema("An observer uses the pool from now on."),
    "warn": FrameSchema(
        "Notify the ranks that another node's machine will be preempted in `left` seconds.",
        {"node": is_rank, "left": is_number},
    ),
    "ping": FrameSchema("Renew the lease and return its remaining time.", {"id?": is_count}, answered_by="pong"),
    "lock": FrameSchema("Request the gang lock."),
    "unlock": FrameSchema(
        "Release the gang lock. `unclean`: a run may have started on some nodes only.", {"unclean?": is_bool}
    ),
    "form": FrameSchema(
        "First node of a gang only: reserve a port for the next epoch.", _REQUEST_ID, answered_by="formed"
    ),
    "number": FrameSchema(
        "Head only: return a unique number, at least `least`, for the next epoch.",
        _REQUEST_ID,
        {"least": is_count},
        answer={"epoch": is_count},
    ),
}

# Frames from workers, and from the process with the plugins' node contexts, to their agent.
FROM_WORKER: FrameSchemas = {
    "hello": FrameSchema(
        "First frame of a worker; a new agent also learns its set-up.",
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
    "outcome": FrameSchema(
        "A call has ended; see the agent's frame. `unusable`: the plugins' contexts could not be entered. `ends`: why "
        "the worker accepts no further call. `left`: the code called `sys.exit(0)`. `joined`: the code left a process "
        "group open.",
        _CALL,
        {"kind": OUTCOME_KIND, "unusable?": is_bool, "ends?": is_text, "left?": is_bool, "joined?": is_bool},
        RESULT_FIELDS,
        body=MAX_EXCEPTION_BYTES,
    ),
    "item": FrameSchema(
        "A generator yielded a value; see the agent's frame.",
        _CALL,
        {"seq": is_count},
        RESULT_FIELDS,
        body=MAX_INLINE_BYTES,
    ),
    "want": FrameSchema("A call needs values of a streamed argument; see the agent's frame.", _WANT),
    "phase": FrameSchema("Long-running phase of the worker.", {"phase": is_text}),
    "sigterm": FrameSchema(
        "Whether user code handles SIGTERM, for example to save a checkpoint.", {"handles": is_bool}
    ),
    "modules": FrameSchema("Modules that the worker has loaded; see the agent's frame.", {"files": _MODULES}),
    "secrets": FrameSchema("Values to redact from now on.", {"values": list_of(is_text)}),
    "entering": FrameSchema("The `around_app` context of a plugin is being entered.", {"plugin": is_text}),
    "failed": FrameSchema(
        "An `around_app` context could not be entered; the body is the pickled exception.",
        {"error": ERROR_KEYS},
        body=MAX_EXCEPTION_BYTES,
    ),
    "ready": FrameSchema("The contexts of the epoch have been entered or have failed.", {"epoch": is_count}),
    "entered": FrameSchema("All `around_app` contexts have been entered."),
}

# Frames from an agent to its workers, which do not validate them.
TO_WORKER: FrameSchemas = {
    "setup": FrameSchema(
        "Set up the process for this epoch; the body is the pickled plugins. `own`: place of the rank in tasks. "
        "`apart`: tasks run in a separate process from broadcasts. For that process: the number of ranks on the "
        "machine (`sharers`), and the `devices` of its rank.",
        {
            "info": is_rank_info,
            "gang?": is_bool,
            "own?": is_rank_info,
            "apart?": is_bool,
            "failed?": PLUGIN_ERROR_KEYS,
            "sharers?": is_count,
            "devices?": is_text,
        },
        _SET_UP,
        body=MAX_PLUGINS_BYTES,
    ),
    "place": FrameSchema(
        "Rank of the process before a gang is formed; `own` as in a set-up.",
        {"info": is_rank_info, "own": is_rank_info},
    ),
    "call": FrameSchema("Run a function; see the client's frame.", _CALL_KEYS, body=2 * MAX_INLINE_BYTES),
    "credit": FrameSchema("The client has received all values of a generator below `next`.", _CREDIT),
    "fed": FrameSchema("A value of a streamed argument; see the client's frame.", _FED, body=MAX_INLINE_BYTES),
    "exit": FrameSchema("Exit normally."),
}

# Frames on separate TLS connections for files (``protocol.blocking_tls_connection``), between nodes and with
# the client. File content follows the frames. After an invalid answer the connection is closed.
FILE_FRAMES: FrameSchemas = {
    "blob": FrameSchema('Request for a blob. Answer: "comes", then the blob.', {"name": is_file_name}),
    "put": FrameSchema(
        'Upload of a blob by the client. Answer: "go"; after the blob: "there".',
        {"name": is_file_name, "size": is_count},
    ),
    "result": FrameSchema(
        'Request of the client for a result from byte `at` on. Answer: "comes", then the result.',
        {"name": is_file_name, "at": is_count},
    ),
    "output": FrameSchema(
        'Request of the client for a written file from byte `at` on. Answer: "comes", the file, "whole".',
        OUTPUT_KEYS,
        {"at": is_count},
    ),
    "go": FrameSchema("The blob can be sent."),
    "whole": FrameSchema(
        "The file was sent completely and has not changed since it was listed.", {"sha256": is_file_name}
    ),
    "there": FrameSchema("The blob was received and its content matches its name."),
    "comes": FrameSchema("The file follows; `size` is its total size in bytes.", {"size": is_count}),
    "answer": FrameSchema("The request failed; the connection is closed.", {"error": is_text}),
}

# Body of "attempt", and the keys that a step requires.
PEER_REQUEST_KEYS = object_of(
    {"nonce": is_text, "to": is_rank, "step": is_text, "run?": is_run_id, "node?": is_rank, "left?": is_number},
    {"epoch?": is_count, "info?": is_rank_info, "attempt?": ATTEMPT_KEYS},
)
PEER_STEPS: Mapping[str, set[str]] = {
    "stop": {"run"},
    "report": {"run"},
    "prepare": {"run"},
    "begin": {"run", "epoch", "info", "attempt"},
    "notice": {"node", "left"},
}
# Body of "report".
PEER_REPORT_KEYS = object_of(
    {
        "nonce?": is_text,
        "attempt?": optional(ATTEMPT_KEYS),
        "active?": is_count,
        "client?": is_bool,
        "ends?": list_of(object_of({"t": one_of("outcome")}, _OUTCOME)),
        "step?": optional(is_number),
        "preempted?": is_bool,
        "ports?": list_of(is_port),
        "accelerators?": is_count,
        "begun?": is_bool,
    }
)

# Frames between the agents of a gang. Only the signature, with the epoch's key, authenticates them.
PEER_FRAMES: FrameSchemas = {
    "heartbeat": FrameSchema(
        "Sign of life during a run that may restart: `count` grows, and `silences` are seconds since the last sign of "
        "life of the nodes that the sender watches.",
        _SILENCES,
        {"node": is_rank, "count": is_count, "signature": is_signature},
    ),
    "attempt": FrameSchema(
        "Request of an agent about a run without a client; the body is signed JSON. Its `step` is to stop the run, to "
        "report how the ranks ended, to reserve ports, to begin the next attempt, or to save before a preemption.",
        {"epoch": is_count, "signature": is_signature},
        body=MAX_PEER_BODY_BYTES,
    ),
    "report": FrameSchema(
        'Answer to "attempt"; the body is signed JSON.', {"signature": is_signature}, body=MAX_PEER_BODY_BYTES
    ),
}


_UNKNOWN = FrameSchema("", body=MAX_INLINE_BYTES)
_OTHER_RELEASE = {"welcome": FrameSchema("", {"version": is_count})}


def validate_header(forms: FrameSchemas, header: Header, head: int, body: int) -> None:
    """Validate a frame after its header has been read.

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
    """Validate a frame of an agent. In a welcome frame of another release, only the version must be valid."""
    greets = header["t"] == "welcome" and header.get("version") != VERSION
    validate_header(_OTHER_RELEASE if greets else FROM_AGENT, header, head, body)


def validate_answer(asked: str, header: Mapping[str, Any]) -> None:
    """Validate an agent's answer.

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
            # The message omits the value, which may be a secret.
            raise WireError(f"invalid type of key {key!r} in an answer to {asked!r}: {type(header.get(key)).__name__}")


def validate_peer_frame(header: Header, head: int, body: int) -> None:
    """Validate a frame of an unauthenticated peer. Unknown kinds are rejected."""
    if header["t"] not in PEER_FRAMES:
        raise WireError("frame kind not allowed from peers")
    validate_header(PEER_FRAMES, header, head, body)


validate_client_frame = partial(validate_header, FROM_CLIENT)
validate_worker_frame = partial(validate_header, FROM_WORKER)
