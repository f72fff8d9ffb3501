"""Translation of arguments of older API generations, and errors for unknown names and arguments.

Each deprecated argument has a rule: it is renamed, ignored with a warning, or rejected with a replacement.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from skyward_core.model.errors import SpecError
from skyward_core.model.misuse_guards import PendingCallGuard, UncalledFunctionGuard
from skyward_core.util.light_dataclass import Value

T = TypeVar("T")

_OURS = __name__.partition(".")[0] + "."

# Function that returns the current arguments for a deprecated argument. Its parameters are the display name of the
# class, the deprecated name and the value.
Rule = Callable[[str, str, Any], dict[str, Any]]
Rules = Mapping[str, Rule]


def renamed(new: str, made: Callable[[Any], Any] = lambda value: value) -> Rule:
    """Return a rule for a renamed argument. None means the default under both names.

    Args:
        new: Current name.
        made: Converts the value. Raises a ValueError with the reason for an invalid value.
    """

    def rule(kind: str, name: str, value: Any) -> dict[str, Any]:
        try:
            return {} if value is None else {new: made(value)}
        except ValueError as error:
            raise SpecError(str(error), name) from None

    return rule


def ignored(reason: str, *meaningless: Any) -> Rule:
    """Return a rule for an argument without effect. A warning is shown once per line of a script.

    Args:
        reason: What this library does instead, or the replacement.
        *meaningless: Values besides None that need no warning, because they match this library's behavior.
    """

    def rule(kind: str, name: str, value: Any) -> dict[str, Any]:
        if not any(value is each or value == each for each in (None, *meaningless)):
            warnings.warn(f"{kind}({name}=...) is ignored: {reason}", FutureWarning, stacklevel=_script_stacklevel())
        return {}

    return rule


def _script_stacklevel() -> int:
    """Return the stack level of the innermost line outside of this library, so that a warning points to the caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        level, frame = level + 1, frame.f_back
    return level


def ignored_silently(kind: str, name: str, value: Any) -> dict[str, Any]:
    """Ignore an argument without a warning, because the value has no effect in this library."""
    return {}


def rejected(reason: str, *meaningless: Any) -> Rule:
    """Return a rule for an argument that raises an error, because ignoring it would change the script's result.

    Args:
        reason: Description of the replacement.
        *meaningless: Values besides None that are accepted, because they have no effect.
    """

    def rule(kind: str, name: str, value: Any) -> dict[str, Any]:
        if any(value is each or value == each for each in (None, *meaningless)):
            return {}
        raise SpecError(f"{kind}({name}=...) is not supported: {reason}", name)

    return rule


def check_function_options(given: dict[str, Any]) -> None:
    """Warn about options that ``sky.function`` has in the newest API generation, and that this library ignores.

    Raises:
        TypeError: If no API generation has such an option.
    """

    check_unknown_arguments("sky.function", given, ["timeout", *_FUNCTION_RULES])
    apply_rules("sky.function", _FUNCTION_RULES, given)


def apply_rules(kind: str, rules: Rules, given: dict[str, Any]) -> dict[str, Any]:
    """Translate arguments of any API generation to the current arguments.

    Args:
        kind: Display name of the class or function.
        rules: Rules by deprecated name.
        given: Arguments by their current or deprecated names.

    Raises:
        SpecError: If an argument is rejected, or if two names of one argument have different values.
    """
    new = {name: value for name, value in given.items() if name not in rules}
    for name in (each for each in given if each in rules):
        for word, value in rules[name](kind, name, given[name]).items():
            if word in new and new[word] != value:
                raise SpecError(f"{word} and {name} are the same argument, with different values. Remove one", word)
            new[word] = value
    return new


class AcceptsDeprecatedArguments(type):
    """Metaclass of values whose method ``_today`` translates arguments of any API generation."""

    # Hidden from type checkers, because they would no longer know the types of the class's arguments.
    if not TYPE_CHECKING:

        def __call__(cls, *args, **given):
            return super().__call__(**cls._today(args, given))


def accept_deprecated(rules: Rules) -> Callable[[type[T]], type[T]]:
    """Return a decorator that lets a dataclass accept deprecated arguments.

    Args:
        rules: Rules by deprecated name.
    """

    def decorate(kind: type[T]) -> type[T]:
        own: Any = kind.__init__

        @functools.wraps(own)
        def __init__(self: Any, *args: Any, **given: Any) -> None:
            if given.keys() & rules.keys():
                given = apply_rules(f"sky.{kind.__name__}", rules, given)
            own(self, *args, **given)

        # `_accepted_arguments` reads these names for its error messages.
        __init__.__dict__["older_words"] = tuple(rules)
        kind.__init__ = __init__  # type: ignore[method-assign]
        return kind

    return decorate


NO_RETRY = 'a pool with sky.Options(on_loss="restart", restarts=3, error_restarts=1) starts failed calls again'
_FUNCTION_RULES: Rules = {
    "queue_timeout": ignored("the time in the queue is not limited; timeout= counts from the start of the call", 0),
    "retry": ignored(NO_RETRY),
}


_REMOVAL_REASONS = {
    "observability": "use sky.log(loss=...) to log metrics, and compute.metrics() to read them",
    "AllocationStrategy SelectionStrategy WorkerExecutor NodeSpec SpecKwargs": "arguments are plain "
    "texts and numbers",
    "Provider ProviderName": "use sky.Local, sky.SSH, sky.AWS, sky.Slurm, or a provider's name",
    "Event EventCallback Metric Log Error Request Fact RequestId ClusterId InstanceId NodeId NodeInstance "
    "ClusterRequested InstanceRequested ShutdownCompleted ShutdownRequested ClusterProvisioned "
    "InstanceProvisioned InstanceBootstrapped InstancePreempted InstanceReplaced InstanceDestroyed ClusterReady "
    "ClusterDestroyed TaskStarted TaskCompleted ComputeAbandoned ComputeAdopted ComputeBound ComputeCreated "
    "ComputeDegraded ComputeDeleted ComputeDeleting ComputeDeletionFailed ComputeProvisioning ComputeReady "
    "ComputeState ComputeView ConsoleEvent CostEvent EmittedEvent GenerationApplied GenerationCreated "
    "LeaseClaimed LeaseReleased MetricEvent NodeEvent NodeState NodeView PhaseEvent PhaseView ProgressEvent "
    "StraysTerminated TaskEvent TaskState TaskView": "events "
    "differ between generations: use sky.attach(name).view for the state of a pool, or its recording",
    "Volume Storage storage": "buckets are not mounted: download input data in the function, and "
    "use sky.Image(outputs=[...]) for files that ranks write",
    "registry DistributedRegistry Consistency": "shared state has one server and is always consistent: "
    "use sky.dict, sky.counter and similar functions",
    "Retry Lost": NO_RETRY,
    "Port": "use the command `forward POOL PORT` for a port of a node",
    "Session Client": "this process owns its pools; use sky.attach(name) for pools of other processes",
    "App main": "use the command `run SCRIPT -a name=value` to call a function",
    "offers OfferRepository Offer InstanceType": "use the command `offers` for all offers, and compute.plan() "
    "for the machines of a pool",
    "TaskIndeterminateError": "a failed or lost call raises sky.RunError",
}  # fmt: skip
_PLUGIN_REMOVAL_REASONS = {
    "cuml Cuml": 'install it with sky.Image(pip=["cuml-cu12"]), and call cuml.accel.install() in the function',
    "mps Mps": "ranks that share a GPU need no setup",
}


def removal_reason(name: str, *, plugin: bool = False) -> str:
    """Return why a name does not exist, as the end of a sentence. "" if no generation has it.

    Args:
        name: The requested name.
        plugin: Whether it is the name of a plugin.
    """
    for names, reason in (_PLUGIN_REMOVAL_REASONS if plugin else _REMOVAL_REASONS).items():
        if name in names.split():
            return f". Only older releases have it: {reason}"
    return ""


def raise_removed_name(module: str, name: str, *, plugin: bool = False) -> NoReturn:
    """Raise the error for a missing name of a module, with the reason if an older API version has it.

    Args:
        module: Name of the module.
        name: The requested name.
        plugin: Whether it is the name of a plugin.

    Raises:
        AttributeError: Always, except in the next case.
        ImportError: For ``from module import name`` if the reason is known, because Python drops an AttributeError's
            text.
    """
    reason = removal_reason(name, plugin=plugin)
    # In `from module import name`, importlib catches an AttributeError, so raise an ImportError.
    if reason and sys._getframe(2).f_code.co_name == "_handle_fromlist":
        raise ImportError(f"cannot import {name!r} from {module!r}{reason}", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}{reason}")


MAX_LISTED_NAMES = 8  # maximum number of known names that an error lists if no known name is similar
_VARARGS_FLAG, _VARKEYWORDS_FLAG = 0x04, 0x08  # flags of code objects: inspect.CO_VARARGS and inspect.CO_VARKEYWORDS


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a suffix for a message about an unknown name: the most similar known name, or all known names.

    Args:
        name: The unknown name.
        known: Known names.
    """
    from difflib import get_close_matches  # imported late, because only a misspelled name needs the comparison

    if near := get_close_matches(name, known, 1) or _find_partial_match(name, known):
        return f"; did you mean {near[0]!r}?"
    if not known:
        return "; no arguments are accepted"
    return f"; known: {', '.join(known)}" if len(known) <= MAX_LISTED_NAMES else ""


def _find_partial_match(name: str, known: Collection[str]) -> list[str]:
    """Return the only known name that contains ``name`` or is part of it, such as "start_timeout" for "timeout"."""
    found = [each for each in known if min(len(name), len(each)) > 3 and (name in each or each in name)]
    return found if len(found) == 1 else []


def check_unknown_arguments(kind: str, given: Iterable[str], known: Collection[str]) -> None:
    """Check that all arguments are known.

    Args:
        kind: Display name of the class or function.
        given: Names of the arguments.
        known: Known names.

    Raises:
        TypeError: If an argument is unknown.
    """
    for name in given:
        if name not in known:
            raise TypeError(f"{kind} has no argument {name!r}{did_you_mean(name, known)}")


def check_keywords(cls: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """Check the names and the number of the arguments of a class.

    Raises:
        TypeError: If an argument is unknown, or if there are too many positional ones.
    """
    owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
    kind = _display_name(cls)
    known: list[str] | None = []
    max_positional = 0.0
    if issubclass(owner, Value):  # read the fields, because such a class generates its `__init__` at first use
        known = [each.name for each in fields(owner)]
        max_positional = sum(not each.kw_only for each in fields(owner))
    elif owner is not object:  # skip object.__init__, which accepts any arguments if the class defines `__new__`
        known, max_positional = _accepted_arguments(vars(owner)["__init__"])
    if known is not None:
        check_unknown_arguments(kind, given, known)
    if len(args) > max_positional:
        takes = (
            "takes no arguments"
            if known == []
            else f"takes at most {max_positional} positional arguments"
            if max_positional
            else "takes keyword arguments only"
        )
        raise TypeError(f"{kind} {takes}, got {len(args)}{' positional' * bool(known)}")


def _accepted_arguments(call: Any) -> tuple[list[str] | None, float]:
    """Return the keyword arguments of a method (None for any), and the maximum number of positional arguments."""
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
    """Return the name that users write: for a provider the class name, for a plugin its ``name``."""
    if not cls.__module__.startswith(_OURS):
        return str(cls.__name__)
    return f"sky.plugins.{cls.name}" if ".plugins." in cls.__module__ else f"sky.{cls.__name__}"


def not_a_call_error(given: Any, position: int) -> TypeError:
    """Return the error for a group member that is not a call.

    Args:
        given: The member.
        position: Index of the member in the group.
    """
    if isinstance(given, UncalledFunctionGuard):
        return uncalled_function_error(given, "sky.gather({}(...), ...)", None)
    advice = ". Unpack it: sky.gather(*calls)" if isinstance(given, Iterable) else ""
    return TypeError(f"gather takes calls of @function functions; number {position} is {type(given).__name__}{advice}")


def uncalled_function_error(function: Any, right: str, other: Any) -> TypeError:
    """Return the error for a function used where its call is required: the parentheses are missing.

    Args:
        function: The function.
        right: Correct code, with braces for the function's name and for the other operand.
        other: The other operand.
    """
    name = _function_name(function)
    operand = f"{_function_name(other)}(...)" if isinstance(other, UncalledFunctionGuard | PendingCallGuard) else "..."
    return TypeError(f"{name} is a function, not a call. Call the function: {right.format(name, operand)}")


def not_run_message(call: Any) -> str:
    """Return the message for a call that is used like the value that it returns."""
    name = _function_name(call)
    return (
        f"{name}(...) has not run and has no value yet. Send it to a pool, value = {name}(...) >> pool, or run it "
        f"in this process, {name}.local(...)"
    )


def _function_name(owner: Any) -> str:
    return str(getattr(owner.fn, "__name__", None) or type(owner.fn).__name__)
