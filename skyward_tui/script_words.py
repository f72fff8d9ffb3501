"""The words behind a script on a command line: flags of its function, and, behind ``--``, what is the script's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from skyward_core.front.user_files import exists, is_file

if TYPE_CHECKING:
    from skyward_core.front.scripts import FunctionInfo

OWN_WORDS = "own_words"
"""Where a context has the words behind ``--``; None where there is no ``--``."""
LIKE = 0.75  # how alike two options are of which one may have been meant: --epochs is not --detach


class ScriptCommand(click.Command):
    """A command whose first argument is a script. Options that are not its own are left in ``context.args``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {"ignore_unknown_options": True, "allow_extra_args": True}
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own: list[str] | None = None
        if "--" in args:
            at = args.index("--")
            args, own = args[:at], args[at + 1 :]
            if own and not self._names_script(ctx, args) and _is_script(own[0]):
                args, own = [*args, f"./{own[0]}" if own[0].startswith("-") else own[0]], own[1:] or None
        ctx.meta[OWN_WORDS] = own
        ctx.meta["script"] = next(filter(_is_script, args), None)
        return super().parse_args(ctx, args)

    def _names_script(self, ctx: click.Context, args: list[str]) -> bool:
        """Whether one of these words is neither an option nor the value of one."""
        target = self.make_parser(ctx).parse_args(list(args))[0].get("target")
        return isinstance(target, str) and not target.startswith("-")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        target = ctx.meta.get("script")
        for function in _functions(target) if target else ():
            with formatter.section(f"Arguments of {function.name}"):
                rows = list(_described(function))
                formatter.write_dl(rows) if rows else formatter.write_text("It takes none.")


def commands_named(target: str) -> list[str]:
    """The commands of ``sky.app`` that a script has, of which one is to be run; none where a function is meant that is
    none of them.

    Raises:
        ScriptError: the script cannot be read.
    """
    from skyward_core.front.scripts import commands_of, split_target

    path, function = split_target(target)
    names = [each.name for each in commands_of(path)] if is_file(path) else []
    return names if function is None or function in names else []


def own_words(context: click.Context, target: str) -> list[str] | None:
    """What a script that is run as a whole is given; None where a function of it is called.

    Raises:
        click.UsageError: it would be run as a whole, and words for it do not stand behind ``--``.
    """
    from skyward_core.front.scripts import has_functions, split_target

    own: list[str] | None = context.meta[OWN_WORDS]
    path, function = split_target(target)
    if own is None and function is None and is_file(path) and not has_functions(path):
        own = []
    if own is not None and context.args:
        raise click.UsageError(
            f"{path} is run as a whole: what is its own goes behind --: {path} -- {' '.join(context.args)}"
        )
    return own


def arguments_of(target: str, left: Sequence[str], own: Sequence[str]) -> list[str]:
    """Flags of a function as texts ``name=value``: ``--epochs 5``, ``--epochs=5``, ``--fast``, ``--no-fast``.

    Args:
        target: the script, or ``script:function``.
        left: what the command line has that is no option of the command.
        own: the command's own options, to be suggested.

    Raises:
        click.UsageError: a word is no flag of the function.
    """
    from skyward_core.front.scripts import find_function, split_target

    if not left:
        return []
    function = find_function(*split_target(target))
    params = {
        each.name: each for each in function.params if each.kind not in ("var_keyword", "var_positional")
    }
    takes_all = any(each.kind == "var_keyword" for each in function.params)
    texts, words = [], list(left)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--"):
            raise click.UsageError(f"{word!r} is no flag of {function.name}: it is {function}")
        known = params.get(name)
        if known is None and name.startswith("no_") and _is_flag(params.get(name[3:])) and not equals:
            texts.append(f"{name[3:]}=false")
        elif known is None and not takes_all:
            raise click.UsageError(_unknown(flag, function, list(params), own))
        elif equals:
            texts.append(f"{name}={value}")
        elif _is_flag(known) and (not words or words[0].startswith("--")):
            texts.append(f"{name}=true")
        elif not words:
            raise click.UsageError(f"{flag} of {function.name} wants a value: {flag} VALUE")
        else:
            texts.append(f"{name}={words.pop(0)}")
    return texts


def _unknown(flag: str, function: FunctionInfo, params: Sequence[str], own: Sequence[str]) -> str:
    flags = [_flag(name) for name in params]
    close = get_close_matches(flag, [*flags, *own], n=1, cutoff=LIKE)
    takes = f"{function.name} has no such argument: it takes {', '.join(flags) or 'none'}"
    return f"there is no option {flag}, and {takes}" + (f"; did you mean {close[0]}?" if close else "")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_flag(param: Any) -> bool:
    return param is not None and (param.annotation == "bool" or param.default in ("True", "False"))


def _described(function: FunctionInfo) -> Iterator[tuple[str, str]]:
    from skyward_core.front.scripts import argument_fields

    fields = {each.name: each for each in argument_fields(function)}
    for param in function.params:
        if param.kind.startswith("var"):
            yield f"-a NAME=VALUE ({param})", ""
            continue
        field = fields[param.name]
        wants = "|".join(field.choices) or (param.annotation or "VALUE").upper()
        kind = "" if _is_flag(param) else f" {wants}"
        both = f" / --no-{param.name.replace('_', '-')}" if _is_flag(param) else ""
        default = "[required]" if param.required else f"[default: {param.default}]"
        yield f"{_flag(param.name)}{both}{kind}", f"{field.help}  {default}" if field.help else default


def _functions(target: str) -> list[FunctionInfo]:
    from skyward_core.front.scripts import commands_of, find_function, list_functions, split_target
    from skyward_core.model.errors import ScriptError

    path, name = split_target(target)
    try:
        if commands := [each for each in commands_of(path) if name in (None, each.name)]:
            return commands
        return list_functions(path) if name is None else [find_function(path, name)]
    except ScriptError:  # whoever runs it is told
        return []


def _is_script(word: str) -> bool:
    path = word.rpartition(":")[0] if not exists(word) and ":" in word else word
    return word.startswith("example:") or path.endswith(".py") or is_file(path)
