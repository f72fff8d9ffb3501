"""What to do about an error: data in the library, words of the library for scripts, commands for the command line."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import click
import pytest

import skyward_core as sky
from skyward_core.model.errors import Action, Hint, PoolError, UsageError, python_hint
from skyward_core.pool.event_log import EventPublisher
from skyward_core.store.ledger import Ledger
from skyward_core.util.redaction import Redactor
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, apply
from skyward_tui.cli.console import Console
from skyward_tui.text.error_hints import advice, format_detail, format_error
from tests.support.commands import COMMANDS
from tests.support.hostile_text import is_harmful
from tests.support.sessions import new_session
from tests.support.sources import nodes_of

HINTS = [Hint(action, "train", "/my keys/known") for action in get_args(Action)]
CORE = Path(sky.__file__).parent


def texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """All strings in a module, pieces that Python joins as one."""
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value for part in node.values if isinstance(part, ast.Constant))  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            yield node.value if isinstance(node.value, str) else node.value.decode("latin-1")


def docstrings(nodes: Iterable[ast.AST]) -> set[ast.AST]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.body[0].value for node in nodes if isinstance(node, kinds) and isinstance(node.body[0], ast.Expr)}


def options_of(command: click.Command) -> set[str]:
    own = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return own.union(*(options_of(each) for each in getattr(command, "commands", {}).values()))


def not_public(text: str) -> Iterator[str]:
    """Return the names in a text that no user of the library or of the command line can use."""
    yield from re.findall(r"\bskyward_core\.\w[\w.]*", text)
    for name, words in re.findall(r"\bsky\.(\w+)(?:\(([^()]*)\))?", text):
        if not hasattr(sky, name):
            yield f"sky.{name}"
        elif words:
            known = inspect.signature(getattr(sky, name)).parameters
            more = any(each.kind == each.VAR_KEYWORD for each in known.values())
            said = () if more else re.findall(r"(\w+)=", words)
            yield from (f"sky.{name}({word}=)" for word in said if word not in known)
    for name, words in re.findall(r"\bskyward-tui ([a-z]+)((?: [^ ;,]+)*)", text):
        if (command := COMMANDS.get(name)) is None:
            yield f"skyward-tui {name}"
        else:
            said = re.findall(r"(?<![\w-])--[a-z][a-z-]*", words)
            yield from (f"skyward-tui {name} {each}" for each in said if each not in options_of(command))


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: hint.action)
def test_advice_names_public_things_only(hint: Hint) -> None:
    assert list(not_public(python_hint(hint))) == list(not_public(advice(hint))) == []


def test_errors_name_public_things_only() -> None:
    found = []
    for path in (path for package in (CORE, CORE.with_name("skyward_tui")) for path in sorted(package.rglob("*.py"))):
        nodes = nodes_of(path)
        raised = {part for node in nodes if isinstance(node, ast.Raise) for part in ast.walk(node)}
        for text in texts(raised - docstrings(nodes)):
            found += [f"{path.name}: {name}" for name in not_public(text)]
    assert not found


def test_names_that_are_not_public_are_found() -> None:
    said = (
        "skyward_core.client.session.Session() has them; sky.pools() has them; sky.Image(pips=['x']) has them; "
        "skyward-tui pools has them; skyward-tui ls --everything has them; sky.Image(pip=['x']); skyward-tui ls --all"
    )
    assert list(not_public(said)) == [
        "skyward_core.client.session.Session", "sky.pools", "sky.Image(pips=)", "skyward-tui pools",
        "skyward-tui ls --everything",
    ]  # fmt: skip


def test_no_text_of_the_library_but_advice_names_the_command() -> None:
    found = [
        f"{path.relative_to(CORE)}: {text}"
        for path in sorted(CORE.rglob("*.py"))
        for text in texts(nodes_of(path))
        if re.search("skyward[-_]tui", text) and path.name != "errors.py"
    ]
    assert not found, found


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: hint.action)
def test_the_command_line_is_told_commands_that_it_has(hint: Hint) -> None:
    words = format_error(PoolError("no.", hint=hint))
    assert words == f"no; {advice(hint)}"
    commands = re.findall(r"skyward-tui (\w+)", words)
    assert set(commands) <= set(COMMANDS)
    assert commands or "pip install -U skyward-tui" in words


def test_a_command_can_be_pasted() -> None:
    said = advice(Hint("trust-host-key", "me@gpu 1;reboot", "/my keys/known"))
    words = shlex.split(said.partition("skyward-tui ")[2])
    assert words == ["trust", "me@gpu 1;reboot", "--known-hosts", "/my keys/known"]


def test_words_for_people_are_safe_whatever_the_name() -> None:
    said = format_error(PoolError("no", hint=Hint("down", "p\x1b[2J\x07\u202e")))
    assert not any(is_harmful(character) for character in said)


def test_a_failed_command_says_the_hint_in_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    Console(as_json=True).report_error(PoolError("no pool named 'p' is up", hint=Hint("list")))
    told = capsys.readouterr()
    expected = "no pool named 'p' is up; list running pools with: skyward-tui ls"
    assert told.err == f"error: {expected}\n"
    assert json.loads(told.out) == {"error": {"type": "PoolError", "message": expected}}


def test_other_errors_stay_as_they_are() -> None:
    assert format_error(OSError("disk full")) == "disk full"
    assert format_error(UsageError("no such plugin.")) == "no such plugin."


def test_a_view_keeps_the_hint_of_its_latest_detail() -> None:
    view = PoolView("p")
    apply(
        view,
        events.PoolState(pool="p", state="starting", detail="refused.", hint=Hint("trust-host-key", "gpu1")),
    )
    assert format_detail(view) == "refused; accept it with: skyward-tui trust gpu1"
    apply(view, events.PoolState(pool="p", state="up", detail="all is well."))
    assert format_detail(view) == "all is well."


def test_a_secret_in_a_hint_reaches_no_view_and_no_journal() -> None:
    written: list[events.Event] = []
    view = PoolView("p")
    news: Any = SimpleNamespace(
        redactor=Redactor(["hunter2hunter2"]), _context=SimpleNamespace(view=view), _listeners=[],
        records=SimpleNamespace(add_event=written.append),
    )  # fmt: skip
    hint = Hint("trust-host-key", "hunter2hunter2@gpu1", "/home/hunter2hunter2/known")
    EventPublisher.emit(news, events.PoolState(pool="p", state="starting", detail="no", hint=hint))
    assert "gpu1" in repr(view.hint) and "hunter2" not in repr(view.hint) + repr(written)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    return tmp_path


def test_errors_of_the_api_carry_hints(home: Path) -> None:
    with pytest.raises(PoolError, match="no pool named 'never' is up") as caught:
        sky.attach("never")
    assert caught.value.hint == Hint("list")
    with closing(Ledger()) as ledger:
        ledger.record_intent("t1", "train", {}, {})
    with pytest.raises(PoolError, match=r"no pool named 'trian' is up; did you mean 'train'\?"):
        sky.attach("trian")
    with pytest.raises(UsageError, match="No run 'never' in the ledger") as missing:
        sky.results("never")
    assert missing.value.hint == Hint("list-all")
    with new_session() as session:
        for verb in (session.tear_down, session.attach, session.observe):
            with pytest.raises(PoolError, match="is up; ") as refused:
                verb("never").result(60)
            assert refused.value.hint == Hint("list")
