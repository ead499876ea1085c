"""The words of a short statement of a fixed form, read from left to right."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias

from store.model.errors import InvalidArgument

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))|"(?P<double>(?:[^"]|"")+)"|`(?P<back>(?:[^`]|``)+)`|(?P<text>'(?:[^']|'')*')|(?P<word>\w+)|(?P<mark>.)""",
    re.DOTALL,
)


class Part(NamedTuple):
    """A part of a name; unless it is quoted, its case does not matter."""

    text: str
    quoted: bool

    def equals(self, name: str) -> bool:
        """True if the part is written like a name."""
        return self.text == name if self.quoted else self.text.casefold() == name.casefold()


Name: TypeAlias = tuple[Part, ...]


class Words:
    """The words, names and marks of a text; comments are none. Words are given in upper case, and written in any.

    Args:
        title: What the statement is called in refusals.
        form: How it is written.
    """

    def __init__(self, title: str, text: str, form: str):
        self._title, self._text, self._form, self._at = title, text, form, 0
        self._parts: list[Part] = []
        self._ends: list[int] = []
        for match in _TOKEN.finditer(text):
            if match["space"] is not None:
                continue
            quoted = match["double"] is not None or match["back"] is not None
            name = (match["double"] or "").replace('""', '"') or (match["back"] or "").replace("``", "`")
            self._parts.append(Part(name if quoted else match[0], quoted))
            self._ends.append(match.end())

    @property
    def _next(self) -> Part | None:
        return self._parts[self._at] if self._at < len(self._parts) else None

    def are_at(self, *words: str) -> bool:
        """True if the next one is one of these."""
        return self._next is not None and not self._next.quoted and self._next.text.upper() in words

    def accept(self, word: str) -> bool:
        """Reads the next one if it is this; True if so."""
        is_next = self.are_at(word)
        self._at += is_next
        return is_next

    def expect(self, *words: str) -> None:
        """Reads these; InvalidArgument if others come."""
        for word in words:
            if not self.accept(word):
                raise self.unexpected(word if word.isalpha() else f'"{word}"')

    def name(self, what: str) -> Name:
        """Reads a name, which may have parts joined by dots."""
        parts = [self.part(f"the name of {what}")]
        while self.accept("."):
            parts.append(self.part(f"the name of {what}"))
        return tuple(parts)

    def part(self, expected: str) -> Part:
        """Reads a part of a name."""
        part = self._next
        if part is None or not (part.quoted or re.fullmatch(r"\w+", part.text)):
            raise self.unexpected(expected)
        self._at += 1
        return part

    def rest(self) -> str:
        """The text after what is read, without a semicolon at its end."""
        return self._text[self._ends[self._at - 1] :].rstrip().removesuffix(";")

    def in_parentheses(self, word: str) -> str:
        """Reads a word and what stands in parentheses after it: the text with them; empty if the word is not next."""
        if not self.accept(word):
            return ""
        self.expect("(")
        start, depth = self._ends[self._at - 1] - 1, 1
        while depth:
            if self._next is None:
                raise self.unexpected('")"')
            depth += self.are_at("(") - self.are_at(")")
            self._at += 1
        return self._text[start : self._ends[self._at - 1]]

    def is_at_end(self) -> bool:
        """True if nothing follows but a semicolon."""
        return self._at == len(self._parts) or (self.are_at(";") and self._at == len(self._parts) - 1)

    def end(self, expected: str = "the end") -> None:
        """Reads the end, which a semicolon may precede."""
        self.accept(";")
        if self._next is not None:
            raise self.unexpected(expected)

    def unexpected(self, expected: str) -> InvalidArgument:
        """The refusal of what comes next."""
        found = f'"{self._next.text[:50]}"' if self._next is not None else "its end"
        return self.refusal(f"{self._title} has {found} where {expected} should be")

    def refusal(self, message: str) -> InvalidArgument:
        """The refusal of the statement."""
        return InvalidArgument(message, code="BAD_SQL", hint=self._form)
