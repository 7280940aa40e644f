"""Locations of several files as one string: joined by ``::``, and braces as a shell expands them.

``x-{000..017}.tar``, ``{train,val}.bin``. A path that exists is taken as it is, even if its
name has such signs.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator

from seqdata.storage.local_files import is_remote

JOINED = "::"
MAX_EXPANSIONS = 1 << 20
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")


def split_location(location: str) -> list[str]:
    """Return the parts of a location that are joined by ``::``.

    An existing path is one part, even if its name, or that of a folder above it, has ``::``.
    """
    literal = find_literal(location)
    first, *others = location[len(literal) :].split(JOINED)
    return [literal + first, *others]


def has_url(location: str | os.PathLike[str]) -> bool:
    """Return whether a location, or one of several joined ones, is a URL."""
    return any(map(is_remote, split_location(os.fspath(location))))


def expand_location(part: str) -> Iterator[str]:
    """Yield the expansions of the braces of a path or URL, without those in names that exist.

    Raises:
        ValueError: If a brace is unbalanced, or there are more than ``MAX_EXPANSIONS``.
    """
    literal = find_literal(part)
    if count_expansions(part[len(literal) :]) > MAX_EXPANSIONS:
        raise ValueError(f"braces of more than {MAX_EXPANSIONS} names")
    for rest in expand_braces(part[len(literal) :]):
        yield literal + rest


def find_literal(location: str) -> str:
    """Return the longest beginning of a local path that exists: all of it, or a folder."""
    if is_remote(location) or not ("{" in location or JOINED in location):
        return ""
    if os.path.exists(os.path.expanduser(location)):
        return location
    at = end = 0
    while (at := location.find("/", end) + 1) and os.path.isdir(os.path.expanduser(location[:at])):
        end = at
    return location[:end]


def expand_braces(text: str) -> Iterator[str]:
    """Yield the expansions of a string with braces.

    Raises:
        ValueError: If a brace is unbalanced.

    Examples:
        >>> list(expand_braces("x-{08..10}.{a,b{1,2}}"))[:4]
        ['x-08.a', 'x-08.b1', 'x-08.b2', 'x-09.a']
    """
    begin = text.find("{")
    if begin < 0:
        if "}" in text:
            raise ValueError("a closing brace without an opening one")
        yield text
        return
    if "}" in text[:begin]:
        raise ValueError("a closing brace without an opening one")
    end = _find_closing(text, begin)
    for choice in _expand_choices(text[begin + 1 : end]):
        for rest in expand_braces(text[end + 1 :]):
            yield text[:begin] + choice + rest


def count_expansions(text: str) -> int:
    """Return an upper bound of the number of expansions, without creating them."""
    numbers = [abs(int(last) - int(first)) + 1 for first, last, _ in _NUMBERS.findall(text)]
    letters = [abs(ord(last) - ord(first)) + 1 for first, last, _ in _LETTERS.findall(text)]
    choices = [inside.count(",") + 1 for inside in text.split("{")[1:]]
    return math.prod(numbers) * math.prod(letters) * math.prod(choices)


def _find_closing(text: str, begin: int) -> int:
    depth = 0
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return at
    raise ValueError("an opening brace without a closing one")


def _expand_choices(inside: str) -> Iterator[str]:
    if found := _NUMBERS.fullmatch(inside):
        first, last = int(found[1]), int(found[2])
        padded = any(re.match(r"-?0\d", bound) for bound in found.groups()[:2])
        width = max(len(found[1]), len(found[2])) if padded else 0
        for number in _expand_range(first, last, found[3]):
            yield f"{number:0{width}d}"
        return
    if found := _LETTERS.fullmatch(inside):
        yield from map(chr, _expand_range(ord(found[1]), ord(found[2]), found[3]))
        return
    parts = _split_choices(inside)
    if len(parts) == 1:  # no alternatives: the braces are part of the name
        yield from (f"{{{name}}}" for name in expand_braces(inside))
        return
    for part in parts:
        yield from expand_braces(part)


def _expand_range(first: int, last: int, step: str | None) -> range:
    size = abs(int(step or 1)) or 1
    return range(first, last + 1, size) if first <= last else range(first, last - 1, -size)


def _split_choices(inside: str) -> list[str]:
    """Split at commas that are not inside of inner braces."""
    parts, depth = [""], 0
    for letter in inside:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
