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

from skyward_core.protocol.frame_codec import CHUNK, FAILURE, INLINE, PLUGINS, VERSION, Header, WireError
from skyward_core.protocol.validators import (
    Checks,
    Forms,
    FrameForm,
    all_of,
    each_of,
    is_any,
    is_below,
    is_blob,
    is_call,
    is_count,
    is_file,
    is_flag,
    is_gist,
    is_log,
    is_node_place,
    is_number,
    is_number_of_ranks,
    is_place,
    is_plain,
    is_port,
    is_rank,
    is_run,
    is_span,
    is_stack_frame,
    is_text,
    made_of,
    names_log,
    one_of,
    or_none,
)

# What may be said; "rebalance": that it is likelier than it was.
NOTICES = ("terminate", "stop", "hibernate", "rebalance")
LONGEST_NOTICE = 24 * 3600.0  # seconds ahead that are believed
PREEMPTED = "Preempted"  # type of the error in outcomes of ranks that are lost to that


def is_same_end(one: float | None, other: float | None) -> bool:
    """Whether two notices mean the same end of a machine, by one clock; None where nobody knows when."""
    if one is None or other is None:
        return one is other
    return abs(one - other) < 30


# Requests that agents of this version may be too old for: each tells in its welcome which it knows.
KNOWS = ("stacks", "profile", "metrics", "debug", "still", "queue", "blocks")
RUNS = 64 << 20  # of one that tells of all runs that an agent remembers


_IS_LINE = made_of({"key": is_text, "nodes": all_of(is_node_place)})
_IS_SUMMARY = made_of(
    {"type": is_text, "text": is_text},
    {"json": is_plain, "is_json": is_flag, "size": is_count},
    only=True,
)
_IS_ERROR = made_of({"type": is_text, "message": is_text}, {"traceback": is_text}, only=True)
_IS_PLUGIN_ERROR = made_of({"type": is_text, "message": is_text}, {"traceback": is_text, "plugin": is_text}, only=True)
_OF_PLUGINS: Checks = {
    "hooks": is_flag, "apps": is_flag, "joins": is_flag, "alone": is_flag, "secrets": all_of(is_text),
}  # fmt: skip
_SET_UP: Checks = {"epoch": is_count} | _OF_PLUGINS
_LIFE: Checks = {"life": made_of({"name": is_text, "first": is_count, "width": is_count}, only=True)}
_SPANS = each_of(names_log, is_span)
_SIZES = each_of(names_log, is_count)
_CALL: Checks = {"run": is_run, "i": is_call}
_WANT: Checks = _CALL | {"arg": is_count, "next": is_count, "until": is_count}
_FEED: Checks = _CALL | {"arg": is_count, "seq": is_count, "part": is_count}
_FEED_MORE: Checks = {"more": is_flag, "ends": one_of("end", "error")}
_PLACE: Checks = {"rank": is_rank, "node": is_rank}
_ASKED: Checks = {"id": is_count}
_PAPERS: Checks = {"authority": is_text, "certificate": is_text, "key": is_text}
_WHEN: Checks = {"at": is_number}
_NODES = all_of(is_rank)
_RUN_KIND: Checks = {"kind": one_of("", "broadcast", "single", "gather", "sweep", "map")}
_ENDING: Checks = {"kind": one_of("returned", "raised", "exited", "lost", "collateral")}
_TOLD: Checks = {
    "summary": or_none(_IS_SUMMARY),
    "error": or_none(_IS_ERROR),
    "seconds": is_number,
    "exit_code": or_none(lambda code: type(code) is int),
    "signal": or_none(is_rank),
    "file": is_file,
    "size": is_count,
    "log": _SPANS,
    "items": is_count,
    "last": or_none(_IS_SUMMARY),
    "begun": is_flag,
    "numbers": each_of(is_text, is_gist),
}
_ENDED: Checks = _TOLD | _WHEN | {"ends": is_text}
_ITEM: Checks = _CALL | {"seq": is_count, "summary": or_none(_IS_SUMMARY)}
_RECORD: Checks = {
    "run": is_run,
    "function": is_text,
    "total": is_call,
    "opened_at": is_number,
} | _RUN_KIND
_MORE_OF_RECORD: Checks = {
    "over": is_flag,
    "nodes": _NODES,
    "job": is_text,
    "more": is_flag,
    "width": is_number_of_ranks,
}
_ASKED_TO_RUN: Checks = _CALL | {"fn": is_blob, "args": is_blob}
_HOW_TO_RUN: Checks = {
    "rank": or_none(is_rank),
    "timeout": or_none(is_number),
    "name": is_text,
    "total": is_call,
    "epoch": is_count,
    "gang": is_flag,
    "stream": is_flag,
    "fed": is_flag,
    "script": is_flag,
    "alone": is_flag,
    "headless": is_flag,
    "next": is_count,
    "taken": is_count,
    "nodes": _NODES,
    "job": is_text,
    "more": is_flag,
    "items": is_count,
    "width": is_number_of_ranks,
} | _RUN_KIND
_REMEMBERED = made_of(
    _RECORD
    | {
        "outcomes": all_of(made_of({"t": one_of("outcome")} | _CALL | _PLACE | _ENDING, _ENDED)),
        "began": all_of(made_of({"t": one_of("began")} | _CALL | _PLACE, _WHEN)),
        "returned": is_call,
    },
    {
        "items": all_of(made_of({"t": one_of("item")} | _ITEM | {"rank": is_rank}, _TOLD | _WHEN)),
        "active": is_call,
    }
    | _MORE_OF_RECORD,
)
_PHASE: Checks = {"rank": is_rank, "phase": is_text, "age": is_number}
_QUEUED: Checks = {"run": is_run, "name": is_text, "nodes": is_count, "only": _NODES}
_WAITING = all_of(made_of(_QUEUED | {"since": is_number, "who": is_text}))
_UNFETCHED = each_of(is_run, is_count)
_NOTICE: Checks = {"kind": one_of(*NOTICES), "left": or_none(is_number)}
_OUTPUT: Checks = {"path": is_below, "version": is_file}
_WRITTEN = made_of(_OUTPUT | {"size": is_count, "at": is_number}, only=True)
_MODULES = each_of(is_text, is_text)
_THREAD = made_of({"name": is_text, "frames": all_of(is_stack_frame), "gil": is_flag}, {"child": is_count}, only=True)
_RANK_STACKS = made_of(
    {
        "rank": is_rank,
        "number": is_count,
        "at": one_of("gone", "starting", "idle", "running", "ending"),
        "runs": all_of(is_run),
    },
    {
        "pid": is_count,
        "how": one_of("py-spy", "signal"),
        "why": is_text,
        "answers": is_flag,
        "threads": all_of(_THREAD),
    },
)

# What an agent says to clients.
FROM_AGENT: Forms = {
    "welcome": FrameForm(
        "It answers a client's hello: what it is, and all runs that it remembers.",
        {
            "version": is_count,
            "epoch": is_count,
            "broken": is_text,
            "node": is_rank,
            "address": is_text,
            "ranks_per_node": is_number_of_ranks,
            "lease": or_none(is_number),
            "runs": all_of(_REMEMBERED),
        },
        {
            "now": is_number,
            "phases": all_of(made_of(_PHASE)),
            "unfetched": _UNFETCHED,
            "modules": _MODULES,
            "cwd": is_text,
            "notices": all_of(made_of(_NOTICE)),
            "knows": all_of(is_text),
            "pool": is_text,
            "pid": is_count,
            "idle_timeout": is_number,
            "spent": is_flag,
            "members": _NODES,
            "queue": _WAITING,
        },
        head=RUNS,
    ),
    "log": FrameForm(
        "A piece of a log file, from the byte `at` on; the body is the piece.",
        {"f": is_log, "at": is_count},
        body=CHUNK,
    ),
    "data": FrameForm(
        'A piece of a file that was asked for by "fetch" or "output"; the body is the piece.',
        _ASKED | {"last": is_flag},
        {"error": is_text, "sha256": is_file},
        body=CHUNK,
    ),
    "outcome": FrameForm(
        "A call has ended. A small result, or the pickled exception, is the body; a large one is the file `file`. "
        "`ends` says why its worker takes no other call.",
        _CALL | _PLACE | _ENDING,
        _ENDED,
        body=FAILURE,
    ),
    "item": FrameForm(
        "A generator has yielded its `seq`-th value, which is the body or the file `file`.",
        _ITEM | {"rank": is_rank},
        {"node": is_rank} | _TOLD | _WHEN,
        body=INLINE,
    ),
    "want": FrameForm(
        "A call waits for values of an argument that its client feeds, from `next` up to `until`; `again` where those "
        "before may have been lost on their way.",
        _WANT,
        {"again": is_flag},
    ),
    "began": FrameForm(
        "A call's function has begun; `log` is how long the log files were then.",
        _CALL | _PLACE,
        {"log": _SIZES} | _WHEN,
    ),
    "stale": FrameForm(
        "A call was not begun, for it was meant for a gang that is no more, or, where it is `spent`, goes on only for "
        "calls that came before; the client sends it anew.",
        _CALL,
        {"why": is_text, "spent": is_flag} | _WHEN,
    ),
    "run": FrameForm(
        "A client has opened a run, as all others are told; of a map also that it is `over`.",
        _RECORD,
        _WHEN | _MORE_OF_RECORD,
    ),
    "gang": FrameForm(
        "The gang of this epoch takes no other broadcast, and why; if it is `spent`, what it has been given goes on. "
        "`members`: its nodes, where these are not all. Who is asked (`ask`) says that it knows.",
        {"epoch": is_count, "broken": is_text},
        {"spent": is_flag, "members": _NODES, "ask": is_flag},
    ),
    "modules": FrameForm(
        "The files of a script's own modules that its workers have loaded, and the hash of each as it was then.",
        {"files": _MODULES},
    ),
    "phase": FrameForm("What a rank's process does that takes long: it imports, or waits for the other ranks.", _PHASE),
    "granted": FrameForm(
        "The client holds the lock on the gang now; `unclean` where the one before it went without a word.",
        {"unclean": is_flag},
    ),
    "held": FrameForm("Another client holds the lock on the gang.", {"by": is_text}),
    "queue": FrameForm(
        "The runs that wait for nodes, in their order, as the head has them: how many nodes each wants (0 for all), or "
        "which ones (`only`), and since when by the head's clock.",
        {"waiting": _WAITING},
    ),
    "turn": FrameForm("It is the turn of this run of the client's, which waits for nodes.", {"run": is_run}),
    "dropped": FrameForm(
        "This run of the client's, which waits for nodes, is not wanted any more, as another one says.",
        {"run": is_run, "by": is_text},
    ),
    "pong": FrameForm(
        "It answers a ping: seconds left of the lease, what nobody has fetched, and what each rank that runs something "
        "has taken of the processor so far, in seconds.",
        {"lease": or_none(is_number)},
        {"unfetched": _UNFETCHED, "processor": each_of(is_text, is_number)} | _ASKED,
    ),
    "known": FrameForm(
        "It answers whatever has an `id` and no answer of its own kind.",
        _ASKED,
        {"error": is_text, "unreachable": is_flag, "forgotten": is_flag, "joins": is_flag},
        body=PLUGINS,
    ),
    "formed": FrameForm(
        'It answers "form": where the ranks of the next epoch find one another.',
        _ASKED | {"head_addr": is_text, "head_port": is_port},
    ),
    "bye": FrameForm(
        "All that there was to say is said, and the log files are this long; the connection ends. `unfetched`: bytes "
        "of results that no client has confirmed, by run.",
        {"logs": _SIZES},
        {"unfetched": _UNFETCHED},
    ),
    "ending": FrameForm("The pool is being torn down, by whom and why.", {"by": is_text, "why": is_text}),
    "notice": FrameForm(
        "The node's machine is about to be taken back, in `left` seconds where that is known, or (`rebalance`) that is "
        "likelier than it was.",
        _NOTICE,
    ),
    "error": FrameForm("Something that a client should know of went wrong.", {"message": is_text}),
    "metrics": FrameForm(
        "What the node's machine was measured at, from the byte `at` of all that was ever written; the body is lines "
        "of JSON, a sample each. `why`: nothing more comes for now.",
        {"at": is_count},
        {"why": is_text},
        body=CHUNK,
    ),
    "wanted": FrameForm("Another client waits for the lock on the gang."),
}

# What it says in answer, by what it was asked.
ANSWERS: Mapping[str, Checks] = {
    "claim": {"calls": all_of(is_call)},
    "ports": {"ports": all_of(is_port), "accelerators": is_count, "line": is_port},
    "peers": {"port": is_port},
    "setup": {
        "env": or_none(each_of(is_text, is_text)),
        "known": is_flag,
        "secrets": all_of(is_text),
        "apps": is_flag,
    },
    "debug": {"over": is_flag},
    "stacks": {"ranks": all_of(_RANK_STACKS)},
    "written": {"files": all_of(_WRITTEN), "more": is_count, "folder": is_text},
    "where": {"runs": each_of(is_run, made_of({"calls": is_call, "active": is_call, "total": is_call}))},
    "number": {"epoch": is_count},
    "holds": {
        "epoch": is_count,
        "broken": is_text,
        "spent": is_flag,
        "members": _NODES,
        "runs": each_of(is_run, made_of({"active": is_call, "ended": is_call, "total": is_call, "kept": is_text})),
    },
}
FAILS = {
    "debug",
    "peers",
    "profile",
    "pull",
    "written",
}  # what may not be possible: an error is an answer, too
ANSWERED = {"form": "formed", "ping": "pong"}  # by frames of these kinds; the rest by "known"

# What clients ask of an agent.
FROM_CLIENT: Forms = {
    "tail": FrameForm(
        "Send what the log files hold, each from this byte on, and go on as they grow.",
        {},
        {"cursors": _SIZES},
    ),
    "call": FrameForm(
        "Run a function: its blob and that of its arguments, by name and size; small ones are the body. `width`: on so "
        "many neighbouring ranks of the node, as a gang of their own; the outcome is the first one's, or a failure.",
        _ASKED_TO_RUN,
        _HOW_TO_RUN,
        body=2 * INLINE,
    ),
    "source": FrameForm(
        "The source of what calls bring by value; the body is the text, compressed.",
        {"hash": is_file, "name": is_file},
        body=INLINE,
    ),
    "claim": FrameForm(
        "Take over a run, or take it up again: send the outcomes of its calls to this client.",
        {"run": is_run},
        {"next": is_count, "taken": is_count} | _ASKED,
    ),
    "ack": FrameForm(
        "These outcomes have been taken, and need not be kept; all of a run where it names no calls.",
        {"calls": each_of(is_run, or_none(all_of(is_call)))},
    ),
    "credit": FrameForm("A generator may go on until it has yielded so many values.", _CALL | {"next": is_count}),
    "fed": FrameForm(
        "The `seq`-th value of an argument that is fed, or a part of it, behind which `more` come. Where it `ends`, "
        'there are no more values; with "error" the body is the exception that stands for them.',
        _FEED,
        _FEED_MORE,
        body=INLINE,
    ),
    "stop": FrameForm(
        "End a run's calls, or the one call `i`: SIGTERM, then SIGKILL. `break` names the gang's epoch that this ends. "
        'After "cancel" no later call of the run begins.',
        {"run": is_run},
        {"i": is_call, "grace": is_number, "why": is_text, "break": is_count},
    ),
    "fetch": FrameForm(
        'Send a file of a result, from a byte on, as "data".', _ASKED | {"f": is_file}, {"at": is_count}
    ),
    "written": FrameForm(
        "Name the files that ranks wrote in their working folder, during a run or since a time, by path; those behind "
        "`after` where there are more than one answer holds.",
        _ASKED | {"patterns": all_of(is_text)},
        {"run": is_run, "since": is_number, "after": is_text},
    ),
    "output": FrameForm(
        'Send one of those files, if it is still as it was, from a byte on, as "data"; the last has its SHA-256.',
        _ASKED | _OUTPUT,
        {"at": is_count},
    ),
    "stacks": FrameForm(
        "Tell where the threads of ranks are, of all or of these: by py-spy; else by a signal, if it may be sent.",
        _ASKED,
        {"ranks": all_of(is_rank), "signal": is_flag},
    ),
    "profile": FrameForm(
        "Look at a rank for so many seconds; the answer's body is its stacks, as py-spy writes them raw.",
        _ASKED | {"rank": is_rank, "seconds": is_number},
    ),
    "debug": FrameForm(
        "Debug a rank that waits at a breakpoint: type this `text` there, or say that nothing more comes (`eof`); "
        "without either the answer's body is what its debugger has printed since, and comes within a second. `who` is "
        "the same word each time; who asks nothing for 15 s has left.",
        _ASKED | {"rank": is_rank, "who": is_text},
        {"text": is_text, "eof": is_flag},
    ),
    "still": FrameForm(
        "A rank of another node stands still at a breakpoint: for so many seconds, unless it is said again, the time "
        "limits of calls here stand still, too; with 0 they go on. Only agents know it that say so in their greeting.",
        {"seconds": is_number},
    ),
    "metrics": FrameForm(
        "Measure the node's machine, and send what comes of it, from this byte on or what is kept of the past, and go "
        "on as more comes. Only agents know it that say so in their greeting.",
        {},
        {"at": is_count},
    ),
    "peers": FrameForm(
        "Listen for other nodes and for large results, as the holder of this certificate.", _ASKED | _PAPERS
    ),
    "pull": FrameForm("Fetch a blob from another node.", _ASKED | {"hash": is_file, "size": is_count, "from": is_any}),
    "drop": FrameForm("Remove these blobs: their calls have ended.", _ASKED | {"blobs": all_of(is_file)}),
    "ports": FrameForm(
        "Name ports that are free on the node, one for each rank, and the one (`line`) at which it hears the gang's "
        "other nodes; 0 where it hears none.",
        _ASKED,
    ),
    "setup": FrameForm("Tell what the pool was made with, for a client that brings another node up.", _ASKED),
    "where": FrameForm("Tell how many calls of each gang run came here.", _ASKED),
    "holds": FrameForm("Tell which gang is here, and what becomes of the calls that it has been given.", _ASKED),
    "enqueue": FrameForm(
        "On the head: have a run wait for its turn to get nodes; `since` where it has waited before.",
        _QUEUED,
        {"since": is_number},
    ),
    "dequeue": FrameForm("It waits no more.", {"run": is_run}),
    "halt": FrameForm(
        "The pool ends: have the ranks end, within their grace, and stay to give out what they wrote; the answer comes "
        "when they have.",
        _ASKED,
    ),
    "shutdown": FrameForm(
        "End; `drop` names runs that nobody wants, `keep` the seconds that the rest is kept.",
        {},
        {"drop": all_of(is_run), "keep": is_number},
    ),
    "gang": FrameForm(
        "Set the ranks up for this epoch, `fresh` in other processes; the body is the plugins, pickled. `line`: where "
        "its nodes hear one another, and the key of what they say, where a rank's failure is to stop all.",
        {"epoch": is_count, "info": is_place},
        _OF_PLUGINS | {"fresh": is_flag, "line": _IS_LINE},
        body=PLUGINS,
    ),
    "hello": FrameForm(
        "Who the client is, and whether it only looks (`observer`) or keeps the pool alive.",
        {},
        {"watch": is_flag, "observer": is_flag, "who": is_text},
    ),
    "use": FrameForm("The client that only looked uses the pool from now on."),
    "warn": FrameForm(
        "Tell the ranks that another node's machine is about to be taken back, in so many seconds.",
        {"node": is_rank, "left": is_number},
    ),
    "ping": FrameForm("Keep the lease, and say how long it is.", {}, _ASKED),
    "lock": FrameForm("Have the lock on the gang, as soon as nobody else has it."),
    "unlock": FrameForm("Give it back; `unclean` where agents may have been left half told.", {}, {"unclean": is_flag}),
    "heard": FrameForm(
        "The client knows that the gang of this epoch takes no other broadcast, as the agent asked: it sends none.",
        {"epoch": is_count},
    ),
    "form": FrameForm("On the first node of a gang: name a port for the next epoch.", _ASKED),
    "number": FrameForm(
        "On the head: give the next epoch a number, from `least` on, that no other gets.",
        _ASKED | {"least": is_count},
    ),
}

# What workers, and the process around them, say to their agent.
FROM_WORKER: Forms = {
    "hello": FrameForm(
        "Which process it is; to an agent that did not start it, also what it was set up for.",
        {"pid": is_count},
        {
            "phase": is_text,
            "age": is_number,
            "state": one_of("fresh", "entering", "entered"),
            "env": each_of(is_text, is_text),
            "info": is_place,
            "modules": _MODULES,
            "wants": all_of(made_of({"t": one_of("want")} | _WANT, {"again": is_flag})),
        }
        | _SET_UP
        | _LIFE,
        body=PLUGINS,
    ),
    "outcome": FrameForm(
        "The call has ended; as from an agent to clients. `unusable` where plugins' contexts could not be entered, "
        "`ends` says why the worker takes no other one, `left` that code came to its end by `sys.exit(0)`, `joined` "
        "that code has left a process group there.",
        _CALL | _ENDING,
        {"unusable": is_flag, "ends": is_text, "left": is_flag, "joined": is_flag} | _TOLD,
        body=FAILURE,
    ),
    "item": FrameForm(
        "The generator has yielded; as from an agent to clients.",
        _CALL | {"seq": is_count},
        _TOLD,
        body=INLINE,
    ),
    "want": FrameForm("The call waits for values; as from an agent to clients.", _WANT, {"again": is_flag}),
    "phase": FrameForm("It does something that takes long.", {"phase": is_text}),
    "modules": FrameForm("What it has loaded; as from an agent to clients.", {"files": _MODULES}),
    "secrets": FrameForm("What to blank from now on.", {"values": all_of(is_text)}),
    "entering": FrameForm("A plugin's context is being entered around the app.", {"plugin": is_text}),
    "failed": FrameForm(
        "It could not be entered; the body is the exception, pickled.", {"error": _IS_ERROR}, body=FAILURE
    ),
    "ready": FrameForm("The ranks' contexts are entered (or failed to be) for this epoch.", {"epoch": is_count}),
    "entered": FrameForm("All contexts around the app are entered."),
}

# What an agent says to workers, which it has started: they take it as it is.
TO_WORKER: Forms = {
    "setup": FrameForm(
        "Set the process up for this epoch: its place, and the pool's plugins, which are the body. In a block of some "
        "ranks of the node: which `life` of that, how many ranks share the machine, and the `devices` of the block. "
        "`own`: its place in tasks; `apart`: a rank's tasks run in another process than its broadcasts.",
        {"info": is_place},
        {
            "gang": is_flag,
            "own": is_place,
            "apart": is_flag,
            "failed": _IS_PLUGIN_ERROR,
            "sharers": is_count,
            "devices": is_text,
        }
        | _SET_UP
        | _LIFE,
        body=PLUGINS,
    ),
    "place": FrameForm(
        "Which rank the process is, where the gang has not been formed; `own` as in a set-up.",
        {"info": is_place, "own": is_place},
    ),
    "call": FrameForm("Run a function, as a client asked for it.", _ASKED_TO_RUN, _HOW_TO_RUN, body=2 * INLINE),
    "credit": FrameForm("The generator may go on until it has yielded so many values.", _CALL | {"next": is_count}),
    "fed": FrameForm(
        "A value of an argument that is fed; as from a client to an agent.", _FEED, _FEED_MORE, body=INLINE
    ),
    "exit": FrameForm("End, as a process ends that has done its work."),
}

# What nodes, and the client, say to one another over lines of their own for files, on which the files follow as they
# are. Whoever asks waits for the answer; a line that says something else is hung up (``protocol.tls_stream``).
OF_FILES: Forms = {
    "blob": FrameForm('Give a blob: "comes", and the blob.', {"name": is_file}),
    "put": FrameForm(
        'Take a blob, of the client only: "go", then the blob comes, then "there".',
        {"name": is_file, "size": is_count},
    ),
    "result": FrameForm(
        'Give a result to the client, from the byte `at` on: "comes", and the result.',
        {"name": is_file, "at": is_count},
    ),
    "output": FrameForm(
        'Give a file that ranks wrote to the client, from the byte `at` on: "comes", the file, then "whole".',
        _OUTPUT | {"at": is_count},
    ),
    "go": FrameForm("The blob may come."),
    "whole": FrameForm("The file has come as it was when it was listed.", {"sha256": is_file}),
    "there": FrameForm("The blob has come, and its content is what its name says."),
    "comes": FrameForm("The file follows; it has so many bytes as a whole.", {"size": is_count}),
    "answer": FrameForm("What was asked for cannot be had, and why; the line ends.", {"error": is_text}),
}

# What a gang's nodes say to one another. Only the signature, with the epoch's key, tells them from strangers.
OF_PEERS: Forms = {
    "failed": FrameForm(
        "A rank of this run has failed on that node, and no client is there: stop the others.",
        {"run": is_run, "epoch": is_count, "node": is_rank, "signature": is_text},
    ),
    "heard": FrameForm(
        "It is done; or (`kept`) its client is there, and decides.",
        {"kept": is_flag},
    ),
}


_UNKNOWN = FrameForm("", body=INLINE)
_OTHER_RELEASE = {"welcome": FrameForm("", {"version": is_count})}


def admit(forms: Forms, header: Header, head: int, body: int) -> None:
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


def from_agent(header: Header, head: int, body: int) -> None:
    """As :func:`admit`; a greeting of another release need only tell of which."""
    greets = header["t"] == "welcome" and header.get("version") != VERSION
    admit(_OTHER_RELEASE if greets else FROM_AGENT, header, head, body)


def answer(asked: str, header: Mapping[str, Any]) -> None:
    """Look at an agent's answer.

    Args:
        asked: the kind of what it was asked.

    Raises:
        WireError: it is no answer to that.
    """
    if header["t"] != ANSWERED.get(asked, "known"):
        raise WireError(f"a frame {header['t']!r} is no answer to {asked!r}")
    failed = asked in FAILS and "error" in header
    for key, check in () if failed else ANSWERS.get(asked, {}).items():
        if key not in header or not check(header[key]):
            # What it is stays unsaid: it may hold secrets.
            raise WireError(f"{key!r} of an answer to {asked!r} cannot be a {type(header.get(key)).__name__}")


def from_peer(header: Header, head: int, body: int) -> None:
    """As :func:`admit`; anybody may have sent it, and what is not known is not taken."""
    if header["t"] not in OF_PEERS:
        raise WireError("a frame of this kind is not taken here")
    admit(OF_PEERS, header, head, body)


from_client = partial(admit, FROM_CLIENT)
from_worker = partial(admit, FROM_WORKER)
