"""Implementations by name: the built-in ones, which need no installation, and those of installed packages."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Final

from store.model.errors import InvalidArgument, nearest

# Top-level names of the project's own packages: `store` and `capture`, or `statflight`, in which a wheel has them.
OWN_PACKAGES: Final = frozenset(name.partition(".")[0] for name in (InvalidArgument.__module__, __name__))


@dataclasses.dataclass(frozen=True)
class Plugins:
    """Classes of one kind, imported when one is needed.

    Args:
        group: Entry point group in which other packages name theirs.
        field: Field of a request with the name, for errors.
        built_in: Name → `module:class`. They take precedence.
        code: Code of the error of an unknown name, if it has one of its own.
    """

    group: str
    field: str
    noun: str
    built_in: Mapping[str, str]
    code: str | None = None

    @cached_property
    def known(self) -> dict[str, str]:
        """Name → `module:class`, of all that are installed."""
        return {point.name: point.value for point in entry_points(group=self.group)} | dict(self.built_in)

    def check(self, name: str, field: str | None = None) -> str:
        """Checks that a name is known and returns it.

        Args:
            field: Field or option with the name, if another than usual.

        Raises:
            InvalidArgument: It is unknown; lists the known ones.
        """
        if name not in self.known:
            field, names = field or self.field, sorted(self.known)
            raise InvalidArgument(
                f'{field}: "{name}" is not a {self.noun}; expected one of {", ".join(names)}',
                hint=nearest(str(name).lower(), names),
                code=self.code,
                params={"field": field, "expected": "|".join(names), "actual": str(name)},
            )
        return name

    def load(self, name: str) -> Any:
        """The class of a name.

        Raises:
            InvalidArgument: The name is unknown, or the class or a library that it needs is not installed.
        """
        module, _, attribute = self.known[self.check(name)].partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ImportError as missing:
            if missing.name and missing.name.partition(".")[0] in OWN_PACKAGES:
                if module.startswith(missing.name):
                    reason = f"{self.field}: {name} is not part of this build"
                    raise InvalidArgument(reason, code="UNIMPLEMENTED") from None
                raise  # a bug, not a missing library
            raise InvalidArgument(
                f"{self.field}: {name} needs the library {missing.name or name}, which is not installed here",
                hint="pip install 'statflight[all]', or the extra of that name",
                params={"field": self.field, "actual": name},
            ) from None
