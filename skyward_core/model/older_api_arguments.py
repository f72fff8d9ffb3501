"""Arguments of older API generations translated to today's."""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from skyward_core.model.errors import SpecError
from skyward_core.model.misuse_errors import PendingCallGuard, UncalledFunctionGuard
from skyward_core.util.light_dataclass import Value

T = TypeVar("T")

_OURS = __name__.partition(".")[0] + "."

# What an argument's value comes to: arguments by the words of today. Takes what is made of it, as people write that.
Rule = Callable[[str, str, Any], dict[str, Any]]
Rules = Mapping[str, Rule]


def renamed(new: str, made: Callable[[Any], Any] = lambda value: value) -> Rule:
    """It is called otherwise now; None stands for the default in both.

    Args:
        new: the name of today.
        made: what the value comes to; raises ValueError, in words, where it comes to none.
    """

    def rule(kind: str, name: str, value: Any) -> dict[str, Any]:
        try:
            return {} if value is None else {new: made(value)}
        except ValueError as error:
            raise SpecError(str(error), name) from None

    return rule


def ignored(reason: str, *meaningless: Any) -> Rule:
    """There is no such thing, and all goes on without: said once per line of a script.

    Args:
        reason: what is so instead, in words.
        *meaningless: values that ask for nothing else than what is; None is one.
    """

    def rule(kind: str, name: str, value: Any) -> dict[str, Any]:
        if not any(value is each or value == each for each in (None, *meaningless)):
            warnings.warn(f"{kind}({name}=...) goes unheeded: {reason}", FutureWarning, stacklevel=_script_stacklevel())
        return {}

    return rule


def _script_stacklevel() -> int:
    """How many calls away from whoever warns the first line is that is none of ours."""
    away, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        away, frame = away + 1, frame.f_back
    return away


def ignored_silently(kind: str, name: str, value: Any) -> dict[str, Any]:
    """Whatever it says is so, or makes no difference here."""
    return {}


def rejected(reason: str, *meaningless: Any) -> Rule:
    """There is no such thing, and what the script does would not be what it asks for.

    Args:
        reason: what to do instead, in words.
        *meaningless: values that ask for nothing; None is one.
    """

    def rule(kind: str, name: str, value: Any) -> dict[str, Any]:
        if any(value is each or value == each for each in (None, *meaningless)):
            return {}
        raise SpecError(f"{kind}({name}=...) is not to be had: {reason}", name)

    return rule


def check_function_options(given: dict[str, Any]) -> None:
    """Tell what goes unheeded of a function's options by the newest generation's words.

    Raises:
        TypeError: no generation has such an option.
    """

    check_unknown_arguments("sky.function", given, ["timeout", *_FUNCTION_RULES])
    apply_rules("sky.function", _FUNCTION_RULES, given)


def apply_rules(kind: str, rules: Rules, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the words of today.

    Args:
        kind: what is made, as people write it.
        rules: by the older word.
        given: arguments by any words.

    Raises:
        SpecError: one is refused, or the same is said twice, by two words.
    """
    new = {name: value for name, value in given.items() if name not in rules}
    for name in (each for each in given if each in rules):
        for word, value in rules[name](kind, name, given[name]).items():
            if word in new and new[word] != value:
                raise SpecError(f"{word} and {name} say the same, and differ: leave one out", word)
            new[word] = value
    return new


class AcceptsDeprecatedArguments(type):
    """Of values whose class says, under ``_today``, what arguments by any words come to."""

    if not TYPE_CHECKING:  # checkers know the words of today, and would take this for a value of any type

        def __call__(cls, *args, **given):
            return super().__call__(**cls._today(args, given))


def accept_deprecated(rules: Rules) -> Callable[[type[T]], type[T]]:
    """Let a dataclass take older words, too.

    Args:
        rules: by the older word.
    """

    def decorate(kind: type[T]) -> type[T]:
        own: Any = kind.__init__

        @functools.wraps(own)
        def __init__(self: Any, *args: Any, **given: Any) -> None:
            if given.keys() & rules.keys():
                given = apply_rules(f"sky.{kind.__name__}", rules, given)
            own(self, *args, **given)

        __init__.__dict__["older_words"] = tuple(rules)  # as misuse_words.py wants to know them
        kind.__init__ = __init__  # type: ignore[method-assign]
        return kind

    return decorate


NO_RETRY = "no call is made again by itself: catch sky.RunError, and send it again"
_FUNCTION_RULES: Rules = {
    "queue_timeout": ignored("a call waits for its turn for as long as it takes; timeout= counts from its start", 0),
    "retry": ignored(NO_RETRY),
}


_REMOVAL_REASONS = {
    "observability": "sky.log(loss=...) tells numbers of a rank, compute.metrics() has all",
    "AllocationStrategy SelectionStrategy WorkerExecutor NodeSpec SpecKwargs": "it is a type of arguments, which are "
    "texts and numbers where they stand",
    "Provider ProviderName": "what machines come from is sky.Local, sky.SSH, sky.AWS or sky.Slurm, or a name",
    "Event EventCallback Metric Log Error Request Fact RequestId ClusterId InstanceId NodeId NodeInstance "
    "ClusterRequested InstanceRequested ShutdownCompleted ShutdownRequested ClusterProvisioned "
    "InstanceProvisioned InstanceBootstrapped InstancePreempted InstanceReplaced InstanceDestroyed ClusterReady "
    "ClusterDestroyed TaskStarted TaskCompleted ComputeAbandoned ComputeAdopted ComputeBound ComputeCreated "
    "ComputeDegraded ComputeDeleted ComputeDeleting ComputeDeletionFailed ComputeProvisioning ComputeReady "
    "ComputeState ComputeView ConsoleEvent CostEvent EmittedEvent GenerationApplied GenerationCreated "
    "LeaseClaimed LeaseReleased MetricEvent NodeEvent NodeState NodeView PhaseEvent PhaseView ProgressEvent "
    "StraysTerminated TaskEvent TaskState TaskView": "no "
    "generation's events are another's: sky.attach(name).view shows what a pool is at, and its record has all",
    "Volume Storage storage": "buckets are not mounted: fetch what a rank needs in the function, and "
    "sky.Image(outputs=[...]) brings back what it writes",
    "registry DistributedRegistry Consistency": "what ranks share has one server, and so one order for "
    "all: sky.dict, sky.counter and their like",
    "Retry Lost": "no call is made again by itself: catch sky.RunError, and send it again",
    "Port": "the command `forward POOL PORT` brings a port of a node here",
    "Session Client": "a pool is this process's own, and sky.attach(name) comes to another's",
    "App main": "the command `run SCRIPT -a name=value` calls a function by its signature",
    "offers OfferRepository Offer InstanceType": "the command `offers` lists what can be rented, "
    "and compute.plan() what would be",
    "TaskIndeterminateError": "a call that failed, or was lost with its node, raises sky.RunError",
}  # fmt: skip
_PLUGIN_REMOVAL_REASONS = {
    "cuml Cuml": 'sky.Image(pip=["cuml-cu12"]) installs it, and cuml.accel.install() in the function sets it up',
    "mps Mps": "ranks that share a GPU share it as processes do",
}


def removal_reason(name: str, *, plugin: bool = False) -> str:
    """Why a name is not here, as the end of a sentence; "" for one that no generation has.

    Args:
        name: what was asked for.
        plugin: whether of the plugins.
    """
    for names, reason in (_PLUGIN_REMOVAL_REASONS if plugin else _REMOVAL_REASONS).items():
        if name in names.split():
            return f": older releases have it, and this library has not, because {reason}"
    return ""


def raise_removed_name(module: str, name: str, *, plugin: bool = False) -> NoReturn:
    """Say that a module of ours has no such name, and why, where the script asks for it.

    Args:
        module: the module's name.
        name: what was asked for.
        plugin: whether of the plugins.

    Raises:
        AttributeError: always; but for ``from module import name`` of a name that has a reason.
        ImportError: in that case: of an AttributeError Python would tell nothing but "cannot import name".
    """
    reason = removal_reason(name, plugin=plugin)
    if reason and sys._getframe(2).f_code.co_name == "_handle_fromlist":  # of importlib, which asks first
        raise ImportError(f"cannot import {name!r} from {module!r}{reason}", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}{reason}")


MAX_LISTED_NAMES = 8  # names that are all told where none is near
_VARARGS_FLAG, _VARKEYWORDS_FLAG = 0x04, 0x08  # inspect's CO_VARARGS and CO_VARKEYWORDS
_PACKAGE_PREFIX = __name__.partition(".")[0] + "."


def did_you_mean(name: str, known: Collection[str]) -> str:
    """What to add to a sentence that ends with a name which nobody knows.

    Args:
        name: as a person wrote it.
        known: those that there are.
    """
    from difflib import get_close_matches  # only ever needed for a typo

    if near := get_close_matches(name, known, 1) or _find_partial_match(name, known):
        return f"; did you mean {near[0]!r}?"
    if not known:
        return "; it takes none"
    return f"; known: {', '.join(known)}" if len(known) <= MAX_LISTED_NAMES else ""


def _find_partial_match(name: str, known: Collection[str]) -> list[str]:
    """The one that a name is a part of, or that is a part of it: "start_timeout" for "timeout"."""
    found = [each for each in known if min(len(name), len(each)) > 3 and (name in each or each in name)]
    return found if len(found) == 1 else []


def check_unknown_arguments(kind: str, given: Iterable[str], known: Collection[str]) -> None:
    """See whether all arguments are such as there are.

    Args:
        kind: what is made or called, as people write it.
        given: the names that were written.
        known: those that it takes.

    Raises:
        TypeError: one is not.
    """
    for name in given:
        if name not in known:
            raise TypeError(f"{kind} takes no {name!r}{did_you_mean(name, known)}")


def check_keywords(cls: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """See whether a class takes these arguments, as far as that is a matter of their names.

    Raises:
        TypeError: it takes no such argument, or none at all.
    """
    owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
    kind = _display_name(cls)
    known: list[str] | None = []
    places = 0.0
    if issubclass(owner, Value):  # whose __init__ is not compiled yet
        known = [each.name for each in fields(owner)]
        places = sum(not each.kw_only for each in fields(owner))
    elif owner is not object:  # and with a __new__ Python lets arguments pass by an object's own
        known, places = _accepted_arguments(vars(owner)["__init__"])
    if known is not None:
        check_unknown_arguments(kind, given, known)
    if len(args) > places:
        takes = (
            "takes no arguments" if known == [] else f"takes {places} by position" if places else "takes all by name"
        )
        raise TypeError(f"{kind} {takes}, and was given {len(args)}{' by position' * bool(known)}")


def _accepted_arguments(call: Any) -> tuple[list[str] | None, float]:
    """What a method takes by name, None where that is anything; and how many arguments by position."""
    older: list[str] = []
    while (inner := getattr(call, "__wrapped__", None)) is not None:
        older, call = [*older, *getattr(call, "older_words", ())], inner
    code = getattr(call, "__code__", None)
    if code is None:
        return None, math.inf
    places = math.inf if code.co_flags & _VARARGS_FLAG else code.co_argcount - 1
    if code.co_flags & _VARKEYWORDS_FLAG:
        return None, places
    first = max(code.co_posonlyargcount, 1)
    return [*code.co_varnames[first : code.co_argcount + code.co_kwonlyargcount], *older], places


def _display_name(cls: Any) -> str:
    """As people write it: a provider by its class, a plugin by its name."""
    if not cls.__module__.startswith(_PACKAGE_PREFIX):
        return str(cls.__name__)
    return f"sky.plugins.{cls.name}" if ".plugins." in cls.__module__ else f"sky.{cls.__name__}"


def not_a_call_error(given: Any, position: int) -> TypeError:
    """The error of a group that something is to be part of which is no call.

    Args:
        given: what.
        position: its place in the group.
    """
    if isinstance(given, UncalledFunctionGuard):
        return uncalled_function_error(given, "sky.gather({}(...), ...)", None)
    spread = ": spread it, sky.gather(*calls)" if isinstance(given, Iterable) else ""
    return TypeError(f"gather takes calls of @function functions; number {position} is {type(given).__name__}{spread}")


def uncalled_function_error(function: Any, right: str, other: Any) -> TypeError:
    """The error of a function that stands where a call of it is wanted: the parentheses were forgotten.

    Args:
        function: what stands there.
        right: what to write, with braces for the function's name, and for what stands beside it.
        other: what stands beside it.
    """
    name = _function_name(function)
    beside = f"{_function_name(other)}(...)" if isinstance(other, UncalledFunctionGuard | PendingCallGuard) else "..."
    return TypeError(f"{name} is a function, and what runs is a call of it: call it, {right.format(name, beside)}")


def not_run_message(call: Any) -> str:
    """What a call says that is taken for its value: it was never sent."""
    name = _function_name(call)
    return (
        f"{name}(...) has not run, and has no value yet: send it to a pool, value = {name}(...) >> pool, or call it "
        f"here, {name}.local(...)"
    )


def _function_name(has_one: Any) -> str:
    return str(getattr(has_one.fn, "__name__", None) or type(has_one.fn).__name__)
