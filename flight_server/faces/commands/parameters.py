"""Parameters of commands, declared in the signatures of their functions: `Annotated[type, option(help=…)]`.

A type is str, int, float, bool, Path, a StrEnum, or a tuple of them for an option of several values; a list of one of
these; and any of these or None. A parameter that is a NamedTuple, without `Annotated`, stands for the parameters that
its fields declare.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import click


class Declaration(NamedTuple):
    """A parameter's declaration in a signature, besides its type and default."""

    is_option: bool
    names: tuple[str, ...]
    settings: dict[str, Any]


def option(*names: str, **settings: Any) -> Declaration:
    """Declares an option.

    Args:
        names: Such as `--format` and `-f`; that of the parameter when absent.
        settings: `min` and `max` of a number, and what `click.Option` takes.
    """
    return Declaration(True, names, settings)


def argument(**settings: Any) -> Declaration:
    """Declares an argument, with what `click.Argument` takes; it is required unless it has a default."""
    return Declaration(False, (), settings)


def of(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[click.Parameter]]:
    """A command's function as click calls it, and its parameters."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[click.Parameter] = []
    whole: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if isinstance(hints[name], type):
            whole[name] = hints[name]
            parameters += of(hints[name])[1]
        else:
            hint, declared = get_args(hints[name])
            parameters.append(_parameter(name, hint, declared, parameter.default))

    def call(**given: Any) -> None:
        made = {name: kind(*map(given.pop, kind._fields)) for name, kind in whole.items()}
        function(**given, **made)

    return call, parameters


def _parameter(name: str, hint: Any, declared: Declaration, default: Any) -> click.Parameter:
    """The parameter of a command that a function's parameter declares."""
    kind = get_args(hint)[0] if isinstance(hint, UnionType) else hint
    is_list = get_origin(kind) is list
    item = get_args(kind)[0] if is_list else kind
    settings = dict(declared.settings)
    settings["type"] = _click_type(item, settings.pop("min", None), settings.pop("max", None))
    required = default is inspect.Parameter.empty
    if is_list:
        settings["callback"] = lambda _context, _parameter, values: list(values) or (None if required else default)
    elif not required:
        settings["default"] = default.value if isinstance(default, StrEnum) else default
    if not declared.is_option:
        shown = settings.pop("metavar") + ("..." if is_list else "")
        settings["metavar"] = shown if required else f"[{shown}]"
        return click.Argument([name], required, nargs=-1 if is_list else 1, **settings)
    names = declared.names or (f"--{name.replace('_', '-')}",)
    if item is bool:
        settings["is_flag"] = True
    return click.Option([name, *names], required=required, multiple=is_list, show_envvar=True, **settings)


def _click_type(item: Any, least: Any, most: Any) -> Any:
    """The type of click for one value of a parameter.

    Args:
        item: The value's type in the signature.
        least: Least value of a number; None for no limit.
        most: Greatest value of a number; None for no limit.
    """
    if get_origin(item) is tuple:
        return get_args(item)
    if issubclass(item, StrEnum):
        return _Choice(item)
    if least is not None or most is not None:
        return (click.IntRange if item is int else click.FloatRange)(least, most)
    return item


class _Choice(click.Choice[Any]):
    """The values of an enumeration, where click's own takes their names."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:  # noqa: ARG002  click's own
        return str(choice)
