"""docs/protocol.md, made from the tables of the protocol: ``python -m tests.protocol_page`` writes it."""

from __future__ import annotations

import inspect
from pathlib import Path

from skyward_core.protocol import frame_schema
from skyward_core.protocol.frame_codec import VERSION
from skyward_core.protocol.validators import Check, Checks, FrameSchema

PAGE = Path(__file__).resolve().parents[1] / "docs" / "protocol.md"

HEAD = f"""# Protocol

The messages between client, agent and worker. This page is generated from the tables in
`skyward_core/protocol/frame_schema.py`, which validate each frame before anything acts on it.
`python -m tests.protocol_page` writes it, and a test compares it.

This is version {VERSION}. A client and an agent of different versions say so, and part; the client can still tear the
pool down.

## Frames

A frame is two lengths (of the header and of the body; unsigned 32 bits, network order), the header, and the body. The
header is a JSON object in UTF-8 that says what it is under `t`. The body is bytes: a pickle, or a piece of a file.
Nobody on the way looks into it.

Keys that end in `?` may be missing. A frame without a key that must be there, with a value that cannot be, or larger
than its kind may be, is an error, and ends the connection. Kinds and keys that are not listed pass, if they are small,
and who does not know them does nothing with them.

Two take frames without a look at these tables: a worker, from the agent that has started it, and whoever holds a line
for files, on which anything but a request, or the answer to one, is the end of the line.

- *run*: the id of a run, 1 to 64 letters, digits, `_` and `-`. *call*: the index of a call in its run.
- *rank*: a rank or a node; -1 where there is none. *count*: a whole number from 0. *port*: 0 to 65,535.
- *file*: the name of a file, never a path. *log*: the name of a log file, such as `r003.out`.
- *blob*: the name of some bytes, made of their content, and how many they are. *span*: two positions in a file.
- *stack_frame*: a function, its file and a line, in a list.
- *place*: a rank's `InstanceInfo`, as an object.
"""

TABLES = (
    ("From a client to an agent", frame_schema.FROM_CLIENT),
    ("From an agent to clients", frame_schema.FROM_AGENT),
    ("From an agent to its workers", frame_schema.TO_WORKER),
    ("From workers to their agent", frame_schema.FROM_WORKER),
    ("Over lines for files", frame_schema.FILE_FRAMES),
    ("Between the agents of a gang", frame_schema.PEER_FRAMES),
)
WORDS = {"some": "count", "any": "anything", "plain": "JSON"}


def page() -> str:
    parts = [HEAD]
    for title, forms in TABLES:
        parts.append(f"\n## {title}\n")
        for kind in sorted(forms):
            parts.append(_kind(kind, forms[kind]))
    parts.append("\n## Answers\n\nWhat is under `id` in a request is in its answer, too, and these keys beside it.\n\n")
    parts += [f"- `{asked}`: {_keys(checks, {})}\n" for asked, checks in sorted(frame_schema.ANSWERS.items())]
    return "".join(parts)


def _kind(kind: str, form: FrameSchema) -> str:
    keys = _keys(form.needs, form.may)
    body = f" Body: up to {form.body:,} bytes." if form.body else ""
    return f"\n### {kind}\n\n{form.says}\n\n{f'Keys: {keys}.' if keys else 'No keys.'}{body}\n"


def _keys(needs: Checks, may: Checks) -> str:
    shown = [f"`{key}` {_words(check)}" for key, check in sorted(needs.items())]
    return ", ".join(shown + [f"`{key}?` {_words(check)}" for key, check in sorted(may.items()) if key not in needs])


def _words(check: Check) -> str:
    """What a value may be, by the name of the function that looks at it, or of that which made the function."""
    made_by, _, made = check.__qualname__.partition(".<locals>")
    inner = inspect.getclosurevars(check).nonlocals if made else {}
    match made_by:
        case "optional":
            return f"{_words(inner['check'])} or null"
        case "list_of":
            return f"[{_words(inner['check'])}]"
        case "dict_of":
            return f"{{{_words(inner['name'])}: {_words(inner['check'])}}}"
        case "one_of":
            return " or ".join(f'"{value}"' for value in inner["values"])
        case "object_of":
            needs, known = inner["needs"], inner["find"].__self__
            return f"object of {', '.join(f'`{key}`' if key in needs else f'`{key}?`' for key in known)}"
        case "<lambda>":
            return "whole number" if "int" in inspect.getsource(check) else "anything"
    word = made_by.removeprefix("_").removeprefix("is_").removeprefix("names_")
    return WORDS.get(word, word)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
