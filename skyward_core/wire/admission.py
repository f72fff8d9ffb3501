"""Frames are looked at, by the tables of :mod:`.messages`, before anything acts on them. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from .frame_form import Forms, FrameForm
from .frames import INLINE, VERSION, Header, WireError
from .messages import ANSWERED, ANSWERS, FAILS, FROM_AGENT, FROM_CLIENT, FROM_WORKER, OF_PEERS
from .value_checks import is_count

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
