"""Every kind of frame, and the validation of one.

Whoever is on the other side may be of another release, broken, or hostile. So a frame is looked at before anything acts
on it, and before its body is taken in: how large that may be depends on its kind, names that files are called by are
of a few plain characters, numbers are in bounds. Kinds and keys that are not listed here pass, small; who does not
know them does nothing with them.
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
    is_number,
    is_plain,
    is_port,
    is_rank,
    is_rank_count,
    is_rank_info,
    is_relative_subpath,
    is_run_id,
    is_span,
    is_stack_frame,
    is_text,
    is_valid_log_name,
    list_of,
    object_of,
    one_of,
    optional,
)

# What may be said; "rebalance": that it is likelier than it was.
NOTICES = ("terminate", "stop", "hibernate", "rebalance")
LONGEST_NOTICE = 24 * 3600.0  # seconds ahead that are believed
PREEMPTED = "Preempted"  # type of the error in outcomes of ranks that are lost to that


def is_same_deadline(one: float | None, other: float | None) -> bool:
    """Whether two notices mean the same end of a machine, by one clock; None where nobody knows when."""
    if one is None or other is None:
        return one is other
    return abs(one - other) < 30


# Requests that agents of this version may be too old for: each tells in its welcome which it knows.
AGENT_FEATURES = ("stacks", "profile", "metrics", "debug", "still", "queue")
MAX_RUNS_BYTES = 64 << 20  # of one that tells of all runs that an agent remembers


# Named keys and values of frames; ``tests.protocol_page`` makes a type of each: ``ErrorKeys`` of ``ERROR_KEYS``.
# A key whose name ends in "?" may be missing.
OUTCOME_KIND = one_of("returned", "raised", "exited", "lost", "collateral")
RUN_KIND = one_of("", "broadcast", "single", "gather", "sweep", "map")
NOTICE_KIND = one_of(*NOTICES)
LOG_SIZES = dict_of(is_valid_log_name, is_count)
LOG_SPANS = dict_of(is_valid_log_name, is_span)
SUMMARY_KEYS = object_of(
    {"type": is_text, "text": is_text, "json?": is_plain, "is_json?": is_bool, "size?": is_count}, only=True
)
ERROR_KEYS = object_of({"type": is_text, "message": is_text, "traceback?": is_text}, only=True)
PLUGIN_ERROR_KEYS = object_of(
    {"type": is_text, "message": is_text, "traceback?": is_text, "plugin?": is_text}, only=True
)
GANG_PEERS = object_of({"key": is_text, "nodes": list_of(is_node_place)})
FETCH_STATUS: Checks = {"error?": is_text, "unreachable?": is_bool}
CREDENTIAL_KEYS: Checks = {"authority": is_text, "certificate": is_text, "key": is_text}
TIMESTAMP: Checks = {"at?": is_number}  # Unix time in seconds, by the node's clock
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
}
RANK_PHASE_KEYS: Checks = {"rank": is_rank, "phase": is_text, "age": is_number}
NOTICE_KEYS: Checks = {"kind": NOTICE_KIND, "left": optional(is_number)}
OUTPUT_KEYS: Checks = {"path": is_relative_subpath, "version": is_file_name}
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
        "answers?": is_bool,
        "threads?": list_of(THREAD_KEYS),
    }
)
RUN_CALL_COUNTS = object_of({"calls": is_call_index, "active": is_call_index, "total": is_call_index})
GANG_CALL_COUNTS = object_of(
    # kept: the job whose next step the node is kept for; "" for none.
    {"active": is_call_index, "ended": is_call_index, "total": is_call_index, "kept": is_text}
)

# Keys that several kinds of frames have in common.
_CALL: Checks = {"run": is_run_id, "i": is_call_index}
_PLACE: Checks = {"rank": is_rank, "node": is_rank}
_REQUEST_ID: Checks = {"id": is_count}
_NODES = list_of(is_rank)
_MODULES = dict_of(is_text, is_text)
_UNFETCHED = dict_of(is_run_id, is_count)
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
}
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

# What an agent says to clients.
FROM_AGENT: FrameSchemas = {
    "welcome": FrameSchema(
        "It answers a client's hello: what it is, and all runs that it remembers.",
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
        "A piece of a log file, from the byte `at` on; the body is the piece.",
        {"f": is_log_name, "at": is_count},
        body=CHUNK_BYTES,
    ),
    "data": FrameSchema(
        'A piece of a file that was asked for by "fetch" or "output"; the body is the piece.',
        _REQUEST_ID,
        {"last": is_bool, "error?": is_text, "sha256?": is_file_name},
        body=CHUNK_BYTES,
    ),
    "outcome": FrameSchema(
        "A call has ended. A small result, or the pickled exception, is the body; a large one is the file `file`. "
        "`ends` says why its worker takes no other call.",
        _OUTCOME,
        body=MAX_EXCEPTION_BYTES,
    ),
    "item": FrameSchema(
        "A generator has yielded its `seq`-th value, which is the body or the file `file`.",
        _ITEM,
        body=MAX_INLINE_BYTES,
    ),
    "want": FrameSchema(
        "A call waits for values of an argument that its client feeds, from `next` up to `until`; `again` where those "
        "before may have been lost on their way.",
        _WANT,
    ),
    "began": FrameSchema("A call's function has begun; `log` is how long the log files were then.", _BEGAN),
    "stale": FrameSchema(
        "A call was not begun, for it was meant for a gang that is no more, or, where it is `spent`, goes on only for "
        "calls that came before; the client sends it anew.",
        _CALL,
        {"why?": is_text, "spent?": is_bool},
        TIMESTAMP,
    ),
    "run": FrameSchema(
        "A client has opened a run, as all others are told; of a map also that it is `over`.", RUN_KEYS, TIMESTAMP
    ),
    "gang": FrameSchema(
        "The gang of this epoch takes no other broadcast, and why; if it is `spent`, what it has been given goes on. "
        "`members`: its nodes, where these are not all.",
        {"epoch": is_count, "broken": is_text, "spent?": is_bool, "members?": _NODES},
    ),
    "modules": FrameSchema(
        "The files of a script's own modules that its workers have loaded, and the hash of each as it was then.",
        {"files": _MODULES},
    ),
    "phase": FrameSchema(
        "What a rank's process does that takes long: it imports, or waits for the other ranks.", RANK_PHASE_KEYS
    ),
    "granted": FrameSchema(
        "The client holds the lock on the gang now; `unclean` where the one before it went without a word.",
        {"unclean": is_bool},
    ),
    "held": FrameSchema("Another client holds the lock on the gang.", {"by": is_text}),
    "queue": FrameSchema(
        "The runs that wait for nodes, in their order, as the head has them: how many nodes each wants (0 for all), or "
        "which ones (`only`), and since when by the head's clock.",
        {"waiting": list_of(QUEUED_RUN_KEYS)},
    ),
    "turn": FrameSchema("It is the turn of this run of the client's, which waits for nodes.", {"run": is_run_id}),
    "dropped": FrameSchema(
        "This run of the client's, which waits for nodes, is not wanted any more, as another one says.",
        {"run": is_run_id, "by": is_text},
    ),
    "pong": FrameSchema(
        "It answers a ping: seconds left of the lease, what nobody has fetched, and what each rank that runs something "
        "has taken of the processor so far, in seconds.",
        {
            "lease": optional(is_number),
            "unfetched?": _UNFETCHED,
            "processor?": dict_of(is_text, is_number),
            "id?": is_count,
        },
    ),
    "known": FrameSchema(
        "It answers whatever has an `id` and no answer of its own kind.",
        _REQUEST_ID,
        FETCH_STATUS,
        {"forgotten?": is_bool, "joins?": is_bool},
        body=MAX_PLUGINS_BYTES,
    ),
    "formed": FrameSchema(
        'It answers "form": where the ranks of the next epoch find one another.',
        _REQUEST_ID,
        {"head_addr": is_text, "head_port": is_port},
    ),
    "bye": FrameSchema(
        "All that there was to say is said, and the log files are this long; the connection ends. `unfetched`: bytes "
        "of results that no client has confirmed, by run.",
        {"logs": LOG_SIZES, "unfetched?": _UNFETCHED},
    ),
    "ending": FrameSchema("The pool is being torn down, by whom and why.", {"by": is_text, "why": is_text}),
    "notice": FrameSchema(
        "The node's machine is about to be taken back, in `left` seconds where that is known, or (`rebalance`) that is "
        "likelier than it was.",
        NOTICE_KEYS,
    ),
    "error": FrameSchema("Something that a client should know of went wrong.", {"message": is_text}),
    "metrics": FrameSchema(
        "What the node's machine was measured at, from the byte `at` of all that was ever written; the body is lines "
        "of JSON, a sample each. `why`: nothing more comes for now.",
        {"at": is_count, "why?": is_text},
        body=CHUNK_BYTES,
    ),
    "wanted": FrameSchema("Another client waits for the lock on the gang."),
}

# What clients ask of an agent.
FROM_CLIENT: FrameSchemas = {
    "tail": FrameSchema(
        "Send what the log files hold, each from this byte on, and go on as they grow.", {"cursors?": LOG_SIZES}
    ),
    "call": FrameSchema(
        "Run a function: its blob and that of its arguments, by name and size; small ones are the body.",
        _CALL_KEYS,
        body=2 * MAX_INLINE_BYTES,
    ),
    "source": FrameSchema(
        "The source of what calls bring by value; the body is the text, compressed.",
        {"hash": is_file_name, "name": is_file_name},
        body=MAX_INLINE_BYTES,
    ),
    "claim": FrameSchema(
        "Take over a run, or take it up again: send the outcomes of its calls to this client.",
        {"run": is_run_id, "next?": is_count, "taken?": is_count, "id?": is_count},
        answer={"calls": list_of(is_call_index)},
    ),
    "ack": FrameSchema(
        "These outcomes have been taken, and need not be kept; all of a run where it names no calls.",
        {"calls": dict_of(is_run_id, optional(list_of(is_call_index)))},
    ),
    "credit": FrameSchema("A generator may go on until it has yielded so many values.", _CREDIT),
    "fed": FrameSchema(
        "The `seq`-th value of an argument that is fed, or a part of it, behind which `more` come. Where it `ends`, "
        'there are no more values; with "error" the body is the exception that stands for them.',
        _FED,
        body=MAX_INLINE_BYTES,
    ),
    "stop": FrameSchema(
        "End a run's calls, or the one call `i`: SIGTERM, then SIGKILL. `break` names the gang's epoch that this ends. "
        'After "cancel" no later call of the run begins.',
        {"run": is_run_id, "i?": is_call_index, "grace?": is_number, "why?": is_text, "break?": is_count},
    ),
    "fetch": FrameSchema(
        'Send a file of a result, from a byte on, as "data".',
        _REQUEST_ID,
        {"f": is_file_name, "at?": is_count},
    ),
    "written": FrameSchema(
        "Name the files that ranks wrote in their working folder, during a run or since a time, by path; those behind "
        "`after` where there are more than one answer holds.",
        _REQUEST_ID,
        {"patterns": list_of(is_text), "run?": is_run_id, "since?": is_number, "after?": is_text},
        answer={"files": list_of(WRITTEN_KEYS), "more": is_count, "folder": is_text},
        may_fail=True,
    ),
    "output": FrameSchema(
        'Send one of those files, if it is still as it was, from a byte on, as "data"; the last has its SHA-256.',
        _REQUEST_ID,
        OUTPUT_KEYS,
        {"at?": is_count},
    ),
    "stacks": FrameSchema(
        "Tell where the threads of ranks are, of all or of these: by py-spy; else by a signal, if it may be sent.",
        _REQUEST_ID,
        {"ranks?": list_of(is_rank), "signal?": is_bool},
        answer={"ranks": list_of(RANK_STACKS_KEYS)},
    ),
    "profile": FrameSchema(
        "Look at a rank for so many seconds; the answer's body is its stacks, as py-spy writes them raw.",
        _REQUEST_ID,
        {"rank": is_rank, "seconds": is_number},
    ),
    "debug": FrameSchema(
        "Debug a rank that waits at a breakpoint: type this `text` there, or say that nothing more comes (`eof`); "
        "without either the answer's body is what its debugger has printed since, and comes within a second. `who` is "
        "the same word each time; who asks nothing for 15 s has left.",
        _REQUEST_ID,
        {"rank": is_rank, "who": is_text, "text?": is_text, "eof?": is_bool},
        answer={"over": is_bool},
        may_fail=True,
    ),
    "still": FrameSchema(
        "A rank of another node stands still at a breakpoint: for so many seconds, unless it is said again, the time "
        "limits of calls here stand still, too; with 0 they go on. Only agents know it that say so in their greeting.",
        {"seconds": is_number},
    ),
    "metrics": FrameSchema(
        "Measure the node's machine, and send what comes of it, from this byte on or what is kept of the past, and go "
        "on as more comes. Only agents know it that say so in their greeting.",
        {"at?": is_count},
    ),
    "peers": FrameSchema(
        "Listen for other nodes and for large results, as the holder of this certificate.",
        _REQUEST_ID,
        CREDENTIAL_KEYS,
        answer={"port": is_port},
        may_fail=True,
    ),
    "pull": FrameSchema(
        "Fetch a blob from another node.",
        _REQUEST_ID,
        {"hash": is_file_name, "size": is_count, "from": optional(is_address)},
    ),
    "drop": FrameSchema("Remove these blobs: their calls have ended.", _REQUEST_ID, {"blobs": list_of(is_file_name)}),
    "ports": FrameSchema(
        "Name ports that are free on the node, one for each rank, and the one (`line`) at which it hears the gang's "
        "other nodes; 0 where it hears none.",
        _REQUEST_ID,
        answer={"ports": list_of(is_port), "accelerators": is_count, "line": is_port},
    ),
    "setup": FrameSchema(
        "Tell what the pool was made with, for a client that brings another node up.",
        _REQUEST_ID,
        answer={
            "env": optional(dict_of(is_text, is_text)),
            "known": is_bool,
            "secrets": list_of(is_text),
            "apps": is_bool,
        },
    ),
    "where": FrameSchema(
        "Tell how many calls of each gang run came here.",
        _REQUEST_ID,
        answer={"runs": dict_of(is_run_id, RUN_CALL_COUNTS)},
    ),
    "holds": FrameSchema(
        "Tell which gang is here, and what becomes of the calls that it has been given.",
        _REQUEST_ID,
        answer={
            "epoch": is_count,
            "broken": is_text,
            "spent": is_bool,
            "members": _NODES,
            "runs": dict_of(is_run_id, GANG_CALL_COUNTS),
        },
    ),
    "enqueue": FrameSchema(
        "On the head: have a run wait for its turn to get nodes; `since` where it has waited before.",
        QUEUE_REQUEST_KEYS,
        {"since?": is_number},
    ),
    "dequeue": FrameSchema("It waits no more.", {"run": is_run_id}),
    "halt": FrameSchema(
        "The pool ends: have the ranks end, within their grace, and stay to give out what they wrote; the answer comes "
        "when they have.",
        _REQUEST_ID,
    ),
    "shutdown": FrameSchema(
        "End; `drop` names runs that nobody wants, `keep` the seconds that the rest is kept.",
        {"drop?": list_of(is_run_id), "keep?": is_number},
    ),
    "gang": FrameSchema(
        "Set the ranks up for this epoch, `fresh` in other processes; the body is the plugins, pickled. `line`: where "
        "its nodes hear one another, and the key of what they say, where a rank's failure is to stop all.",
        {"epoch": is_count, "info": is_rank_info, "fresh?": is_bool, "line?": GANG_PEERS},
        _PLUGIN_FLAGS,
        body=MAX_PLUGINS_BYTES,
    ),
    "hello": FrameSchema(
        "Who the client is, and whether it only looks (`observer`) or keeps the pool alive.",
        {"watch?": is_bool, "observer?": is_bool, "who?": is_text},
    ),
    "use": FrameSchema("The client that only looked uses the pool from now on."),
    "warn": FrameSchema(
        "Tell the ranks that another node's machine is about to be taken back, in so many seconds.",
        {"node": is_rank, "left": is_number},
    ),
    "ping": FrameSchema("Keep the lease, and say how long it is.", {"id?": is_count}, answered_by="pong"),
    "lock": FrameSchema("Have the lock on the gang, as soon as nobody else has it."),
    "unlock": FrameSchema("Give it back; `unclean` where agents may have been left half told.", {"unclean?": is_bool}),
    "form": FrameSchema(
        "On the first node of a gang: name a port for the next epoch.", _REQUEST_ID, answered_by="formed"
    ),
    "number": FrameSchema(
        "On the head: give the next epoch a number, from `least` on, that no other gets.",
        _REQUEST_ID,
        {"least": is_count},
        answer={"epoch": is_count},
    ),
}

# What workers, and the process around them, say to their agent.
FROM_WORKER: FrameSchemas = {
    "hello": FrameSchema(
        "Which process it is; to an agent that did not start it, also what it was set up for.",
        {
            "pid": is_count,
            "phase?": is_text,
            "age?": is_number,
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
        "The call has ended; as from an agent to clients. `unusable` where plugins' contexts could not be entered, "
        "`ends` says why the worker takes no other one, `left` that code came to its end by `sys.exit(0)`, `joined` "
        "that code has left a process group there.",
        _CALL,
        {"kind": OUTCOME_KIND, "unusable?": is_bool, "ends?": is_text, "left?": is_bool, "joined?": is_bool},
        RESULT_FIELDS,
        body=MAX_EXCEPTION_BYTES,
    ),
    "item": FrameSchema(
        "The generator has yielded; as from an agent to clients.",
        _CALL,
        {"seq": is_count},
        RESULT_FIELDS,
        body=MAX_INLINE_BYTES,
    ),
    "want": FrameSchema("The call waits for values; as from an agent to clients.", _WANT),
    "phase": FrameSchema("It does something that takes long.", {"phase": is_text}),
    "modules": FrameSchema("What it has loaded; as from an agent to clients.", {"files": _MODULES}),
    "secrets": FrameSchema("What to blank from now on.", {"values": list_of(is_text)}),
    "entering": FrameSchema("A plugin's context is being entered around the app.", {"plugin": is_text}),
    "failed": FrameSchema(
        "It could not be entered; the body is the exception, pickled.",
        {"error": ERROR_KEYS},
        body=MAX_EXCEPTION_BYTES,
    ),
    "ready": FrameSchema("The ranks' contexts are entered (or failed to be) for this epoch.", {"epoch": is_count}),
    "entered": FrameSchema("All contexts around the app are entered."),
}

# What an agent says to workers, which it has started: they take it as it is.
TO_WORKER: FrameSchemas = {
    "setup": FrameSchema(
        "Set the process up for this epoch: its place, and the pool's plugins, which are the body. "
        "`own`: its place in tasks; `apart`: a rank's tasks run in another process than its broadcasts. In that one: "
        "how many ranks are the machine's `sharers`, and the `devices` that are its rank's.",
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
        "Which rank the process is, where the gang has not been formed; `own` as in a set-up.",
        {"info": is_rank_info, "own": is_rank_info},
    ),
    "call": FrameSchema("Run a function, as a client asked for it.", _CALL_KEYS, body=2 * MAX_INLINE_BYTES),
    "credit": FrameSchema("The generator may go on until it has yielded so many values.", _CREDIT),
    "fed": FrameSchema(
        "A value of an argument that is fed; as from a client to an agent.", _FED, body=MAX_INLINE_BYTES
    ),
    "exit": FrameSchema("End, as a process ends that has done its work."),
}

# What nodes, and the client, say to one another over lines of their own for files, on which the files follow as they
# are. Whoever asks waits for the answer; a line that says something else is hung up (``protocol.tls_stream``).
FILE_FRAMES: FrameSchemas = {
    "blob": FrameSchema('Give a blob: "comes", and the blob.', {"name": is_file_name}),
    "put": FrameSchema(
        'Take a blob, of the client only: "go", then the blob comes, then "there".',
        {"name": is_file_name, "size": is_count},
    ),
    "result": FrameSchema(
        'Give a result to the client, from the byte `at` on: "comes", and the result.',
        {"name": is_file_name, "at": is_count},
    ),
    "output": FrameSchema(
        'Give a file that ranks wrote to the client, from the byte `at` on: "comes", the file, then "whole".',
        OUTPUT_KEYS,
        {"at": is_count},
    ),
    "go": FrameSchema("The blob may come."),
    "whole": FrameSchema("The file has come as it was when it was listed.", {"sha256": is_file_name}),
    "there": FrameSchema("The blob has come, and its content is what its name says."),
    "comes": FrameSchema("The file follows; it has so many bytes as a whole.", {"size": is_count}),
    "answer": FrameSchema("What was asked for cannot be had, and why; the line ends.", {"error": is_text}),
}

# What a gang's nodes say to one another. Only the signature, with the epoch's key, tells them from strangers.
PEER_FRAMES: FrameSchemas = {
    "failed": FrameSchema(
        "A rank of this run has failed on that node, and no client is there: stop the others.",
        {"run": is_run_id, "epoch": is_count, "node": is_rank, "signature": is_text},
    ),
    "heard": FrameSchema("It is done; or (`kept`) its client is there, and decides.", {"kept": is_bool}),
}


_UNKNOWN = FrameSchema("", body=MAX_INLINE_BYTES)
_OTHER_RELEASE = {"welcome": FrameSchema("", {"version": is_count})}


def validate_header(forms: FrameSchemas, header: Header, head: int, body: int) -> None:
    """Look at a frame whose header has come.

    Args:
        head, body: how many bytes header and body have.

    Raises:
        WireError: it is not as frames of its kind are.
    """
    kind = header["t"]
    form = forms.get(kind, _UNKNOWN)
    if body > form.body or head > form.head:
        raise WireError(f"a frame {kind!r:.40} of {head:,} and {body:,} bytes is not of this protocol")
    if not header.keys() >= form.needs.keys():
        key = min(form.needs.keys() - header.keys())
        raise WireError(f"{key!r} of a frame {kind!r:.40} cannot be None")
    find = form.checks.get
    for key, value in header.items():
        check = find(key)
        if check is not None and not check(value):
            raise WireError(f"{key!r} of a frame {kind!r:.40} cannot be {value!r:.80}")


def validate_agent_frame(header: Header, head: int, body: int) -> None:
    """As :func:`validate_header`; a greeting of another release need only tell of which."""
    greets = header["t"] == "welcome" and header.get("version") != VERSION
    validate_header(_OTHER_RELEASE if greets else FROM_AGENT, header, head, body)


def validate_answer(asked: str, header: Mapping[str, Any]) -> None:
    """Validate an agent's answer.

    Args:
        asked: The kind of the request.

    Raises:
        WireError: If the frame is not an answer to that.
    """
    request = FROM_CLIENT.get(asked, _UNKNOWN)
    if header["t"] != request.answered_by:
        raise WireError(f"a frame {header['t']!r} is no answer to {asked!r}")
    if request.may_fail and "error" in header:
        return
    for key, check in request.answer.items():
        if key not in header or not check(header[key]):
            # What it is stays unsaid: it may hold secrets.
            raise WireError(f"{key!r} of an answer to {asked!r} cannot be a {type(header.get(key)).__name__}")


def validate_peer_frame(header: Header, head: int, body: int) -> None:
    """As :func:`validate_header`; anybody may have sent it, and what is not known is not taken."""
    if header["t"] not in PEER_FRAMES:
        raise WireError("a frame of this kind is not taken here")
    validate_header(PEER_FRAMES, header, head, body)


validate_client_frame = partial(validate_header, FROM_CLIENT)
validate_worker_frame = partial(validate_header, FROM_WORKER)
