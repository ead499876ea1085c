"""Implementations by name: the built-in ones, which need no installation, and those of installed packages.

This is the only loader of plug-ins: of engines, formats, readers, homes and stores. One that cannot be loaded, whatever
it raises, is named once in the log of each process that needs it, and disturbs nothing else.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, TypeVar

from store.model.errors import InvalidArgument, first_line, nearest

T = TypeVar("T")
log = logging.getLogger("statflight.plugins")

_OWN: Final = __name__.partition(".")[0]  # top-level package: `store`, or `statflight` in a wheel


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """A plug-in of another package that cannot be loaded.

    Attributes:
        noun: What it would be: engine, format, reader, home or store.
        name: Its name among those.
        package: Name and version of the distribution that installed it.
        reason: The error, of one line.
    """

    noun: str
    name: str
    package: str
    reason: str

    def __str__(self) -> str:
        return f'the {self.noun} "{self.name}" of the package {self.package} cannot be loaded: {self.reason}'


@dataclasses.dataclass(frozen=True)
class Plugins:
    """Classes or functions of one kind, imported when one is needed.

    Args:
        group: Entry point group in which other packages name theirs.
        field: Field of a request with the name, for errors.
        noun: What each is, for errors.
        built_in: Name → `module:attribute`. They take precedence.
        code: Code of the error of an unknown name, if it has one of its own.
        extras: Name → the extra of this project that installs what it needs; that of its own name otherwise.
        make: Makes a value of what was loaded, for `each`; what it raises is the plug-in's fault.

    Attributes:
        broken: Name → the plug-in that could not be loaded, of those that this process tried so far.
    """

    group: str
    field: str
    noun: str
    built_in: Mapping[str, str]
    code: str | None = None
    extras: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    make: Callable[[Any], Any] = lambda loaded: loaded
    broken: dict[str, Broken] = dataclasses.field(default_factory=dict, init=False, compare=False)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, init=False, compare=False, repr=False)

    def installed(self) -> dict[str, EntryPoint]:
        """Name → entry point, of other packages that are installed now; without names of built-in ones."""
        return {point.name: point for point in _points().select(group=self.group) if point.name not in self.built_in}

    @cached_property
    def known(self) -> dict[str, EntryPoint]:
        """Name → entry point, of the built-in ones and of all that were installed when first asked for."""
        own = {name: EntryPoint(name, value, self.group) for name, value in self.built_in.items()}
        return self.installed() | own

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
        """The class or function of a name.

        Raises:
            InvalidArgument: The name is unknown; or the class, or a library that it needs, is not installed or cannot
                be imported.
        """
        point = self.known[self.check(name)]
        if name not in self.built_in:
            loaded = self._tried(point, lambda loaded: loaded)
            if isinstance(loaded, Broken):
                raise InvalidArgument(
                    f"{self.field}: {loaded}",
                    hint=f"mend or remove the package {loaded.package}",
                    code=self.code,
                    params={"field": self.field, "actual": name},
                )
            return loaded
        try:
            return point.load()
        except ImportError as missing:
            module = point.value.partition(":")[0]
            if missing.name and missing.name.partition(".")[0] in (_OWN, module.partition(".")[0]):
                if module.startswith(missing.name):
                    reason = f"{self.field}: {name} is not part of this build"
                    raise InvalidArgument(reason, code="UNIMPLEMENTED") from None
                raise  # a bug, not a missing library
            raise InvalidArgument(
                f"{self.field}: {name} needs the library {missing.name or name}, which is not installed here",
                hint=f"pip install 'statflight[{self.extras[name]}]'"
                if name in self.extras
                else "pip install 'statflight[all]', or the extra of that name",
                params={"field": self.field, "actual": name},
            ) from None

    def each(self) -> Iterator[tuple[EntryPoint, Any]]:
        """Loads all that other packages have installed.

        Yields:
            The entry point, and what `make` made of it, or a `Broken`.
        """
        for point in self.installed().values():
            yield point, self._tried(point, self.make)

    def _tried(self, point: EntryPoint, make: Callable[[Any], T]) -> T | Broken:
        try:
            made = make(point.load())
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # SystemExit and a library's panic among them
            reason = f"{type(error).__name__}: {first_line(error, 500)}"
            broken = Broken(self.noun, point.name, package_of(point), reason)
            with self._lock:
                is_new = self.broken.get(point.name) != broken
                self.broken[point.name] = broken
            if is_new:
                log.error("%s", broken)
            return broken
        with self._lock:
            self.broken.pop(point.name, None)
        return made


def _points() -> Any:
    """The entry points of all packages that are installed now; `select` finds those of a group."""
    return _read(tuple((path, _changed(path)) for path in sys.path))


@lru_cache(maxsize=1)
def _read(_paths: tuple[tuple[str, int], ...]) -> Any:
    """Reads a file of each package, which takes longer than to start a command; again when a package came or went."""
    return entry_points()


def _changed(path: str) -> int:
    """When files were last added to a directory or taken from it, in nanoseconds; 0 if there is none."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def package_of(point: EntryPoint) -> str:
    """Name and version of the distribution that installed a plug-in."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown"
