"""What to do about an error, as data: whoever shows the error says it in words of its own."""

from __future__ import annotations

from typing import Literal

from .value import Value, value

Action = Literal[
    "list", "list-all", "attach", "down", "results", "trust-host-key", "upgrade", "blocks", "purchases"
]


@value
class Hint(Value):
    """What to do about an error.

    Attributes:
        action: "list" (look at the pools that are up), "list-all" (at those that are over and at runs, too), "attach"
            (the pool is up: use it or end it), "down" (end the pool), "results" (look at what a run's results were),
            "trust-host-key" (accept the host's key), "upgrade" (a newer release of this software can read
            what this one cannot), "blocks" (list what can be bought ahead), "purchases" (look what was).
        subject: the name of the pool, the id of the run, or the host; "" where the action needs none.
        path: the known_hosts file that is to take the key; "" for the usual one.
    """

    action: Action
    subject: str = ""
    path: str = ""


def in_python(hint: Hint) -> str:
    """Return the hint in words of this library, if its API has something for it."""
    name = hint.subject
    match hint.action:
        case "attach":
            return (
                f"use it (sky.attach({name!r})), end it (sky.attach({name!r}).down()), or choose another name"
            )
        case "trust-host-key":
            more = f", known_hosts={hint.path!r}" if hint.path else ""
            return f"accept it with: sky.SSH([{name!r}]{more}, host_keys='accept-new')"
        case "upgrade":
            return "a newer release of this library can read it"
        case _:
            return in_commands(hint)


def in_commands(hint: Hint) -> str:
    """Return a hint that names a command."""
    from shlex import quote

    name = quote(hint.subject)
    return {
        "list": "skyward-tui ls shows those that are up",
        "list-all": "skyward-tui ls --all shows pools and their runs",
        "down": f"end it: skyward-tui down {name}",
        "results": f"skyward-tui results {name} shows what they were",
        "blocks": "skyward-tui offers --block 24 lists what is sold now",
        "purchases": "skyward-tui capacity ls shows what was bought",
    }[hint.action]
