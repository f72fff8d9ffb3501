"""Dataclasses that share their methods, so that the classes are created faster.

``dataclass`` compiles the methods of each class. This takes about a millisecond per class and would delay every start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform, overload

T = TypeVar("T")


def checked(
    check: Callable[[Any], Any], *, default: Any = MISSING, default_factory: Any = MISSING, repr: bool = True
) -> Any:
    """Declare a dataclass field whose values are passed through the function ``check``."""
    return field(default=default, default_factory=default_factory, repr=repr, metadata={"check": check})


@overload
def value(cls: type[T], /) -> type[T]: ...


@overload
def value(*, kw_only: bool = False, frozen: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field, checked))
def value(cls: Any = None, /, *, kw_only: bool = False, frozen: bool = False) -> Any:
    """Make a subclass of :class:`Value` a dataclass with slots.

    Type checkers treat the class as frozen, but at run time only ``frozen`` classes reject changes, because the checks
    are slow to compile. ``__init__`` is compiled when it is first called or inspected, because most processes use few
    classes.

    Args:
        frozen: Whether to reject changes at run time. These classes have no slots; users create their instances.
    """

    def make(raw: type[T]) -> type[T]:
        made: Any = dataclass(slots=not frozen, eq=False, repr=False, init=False, kw_only=kw_only)(raw)
        made.__init__ = _lazy_init(made)
        if frozen:
            made.__dataclass_params__.frozen = True
            made.__signature__ = _Signature()
            made.__setattr__ = _frozen_setter(made, "assign to", object.__setattr__)
            made.__delattr__ = _frozen_setter(made, "delete", object.__delattr__)
        return made  # type: ignore[no-any-return]

    return make if cls is None else make(cls)


def _lazy_init(made: Any) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **named: Any) -> None:
        made.__init__ = compiled = _compile_init(made)
        compiled(self, *args, **named)

    return __init__


def _frozen_setter(made: Any, what: str, change: Callable[..., None]) -> Callable[..., None]:
    def refuse(self: Any, name: str, *value: object) -> None:
        if type(self) is made or name in made.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot {what} field {name!r}")
        change(self, name, *value)

    return refuse


class _Signature:
    """Descriptor that computes the signature of ``__init__`` when ``inspect`` requests it."""

    def __get__(self, instance: object, owner: Any) -> Any:
        if "__dataclass_fields__" not in vars(owner) or instance is not None:
            raise AttributeError("__signature__")
        from inspect import signature

        whole = signature(_compile_init(owner))
        return whole.replace(parameters=list(whole.parameters.values())[1:])


class _FactoryDefault:
    def __repr__(self) -> str:
        return "<factory>"


_FACTORY_DEFAULT = _FactoryDefault()  # marks a parameter whose default value a factory function creates


def _compile_init(made: Any) -> Callable[..., None]:
    """Return the ``__init__`` method that ``dataclass`` would generate for a class."""
    names: dict[str, Any] = {"_MADE": _FACTORY_DEFAULT, "_put": object.__setattr__}
    put = "_put(self, {0!r}, {1})" if made.__dataclass_params__.frozen else "self.{0} = {1}"
    parameters: list[str] = []
    lines: list[str] = []
    for each in sorted(fields(made), key=lambda each: each.kw_only is True):
        name = each.name
        if each.kw_only is True and "*" not in parameters:
            parameters.append("*")
        if each.default_factory is not MISSING:
            names[f"_make_{name}"] = each.default_factory
            parameters.append(f"{name}=_MADE")
            lines.append(put.format(name, f"_make_{name}() if {name} is _MADE else {name}"))
        else:
            names[f"_default_{name}"] = each.default
            parameters.append(name if each.default is MISSING else f"{name}=_default_{name}")
            lines.append(put.format(name, name))
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    # Executing this text is safe, because it contains no data except the names of the class's own fields.
    exec(f"def __init__(self, {', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"]), names)  # noqa: S102
    written: Any = names["__init__"]
    written.__qualname__ = f"{made.__qualname__}.__init__"
    written.__annotations__ = {each.name: each.type for each in fields(made)} | {"return": None}
    return written  # type: ignore[no-any-return]


class Value:
    """Base of classes made by :func:`value`, and of frozen dataclasses with ``eq=False, repr=False``.

    Instances are equal if all their compared fields are equal.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        compared = (field.name for field in fields(self) if field.compare)
        return all(getattr(self, name) == getattr(other, name) for name in compared)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self) if field.compare))

    def __repr__(self) -> str:
        shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"
