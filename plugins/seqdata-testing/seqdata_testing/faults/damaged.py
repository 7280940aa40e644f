"""Tries damage on a data set: harm its files, open and read or play it, put them back.

Place in the flow: the matrix's rows D1 to D9. Reads: data sets in a folder of its own. Makes:
outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from seqdata.loader import Loader
from seqdata.loading.options import OnError
from seqdata.policies.fixed import Fixed
from seqdata.protocols import Store
from seqdata_testing.faults import damage
from seqdata_testing.faults.mended import mend_through
from seqdata_testing.faults.outcome import Outcome
from seqdata_testing.faults.reading import Sequences, play_through, read_through
from seqdata_testing.faults.subject import Subject

BATCH = 4  # sequences
_MOST_ERRORS = 1000


@dataclass(frozen=True, slots=True)
class Harm:
    """One act of damage.

    Attributes:
        what: For messages.
        act: Harms the files in a folder.
        files: Names of those that it changes.
    """

    what: str
    act: Callable[[Path], None]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """What damage is drawn for.

    Attributes:
        subject: The kind of data set.
        root: Its folder.
        names: The files that are to be harmed.
        random: To draw from.
        count: How many acts of damage.
    """

    subject: Subject
    root: Path
    names: list[str]
    random: np.random.Generator
    count: int


Harms = Callable[[Target], list[Harm]]


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a data set is opened and read.

    Attributes:
        verify: When checksums are looked at.
        workers: Processes of the loader that plays it; None: the store is read without a loader.
        policy: The loader's ``on_error``.
    """

    verify: str
    workers: int | None = None
    policy: OnError = "raise"


def harmed(subject: Subject, how: How, harms: Harms, count: int, part: str) -> list[Outcome]:
    """Try one act of damage after the other on a data set in the present folder.

    Args:
        subject: What is damaged.
        how: How it is opened and read.
        harms: Gives the damage.
        count: How many to try.
        part: Which files: ``shards``, or the ``others``.
    """
    given = subject.dataset()
    root = Path("data").resolve()
    subject.write(root, given)
    open_it = partial(subject.open, root, how.verify)
    found = []
    names = subject.shards(root) if part == "shards" else subject.others(root)
    for harm in harms(Target(subject, root, names, np.random.default_rng(1), count)):
        with _done(root, harm):
            found.append(_came_of(open_it, how, given))
    return found


def _came_of(open_it: Callable[[], Store], how: How, given: Sequences) -> Outcome:
    if how.workers is None:
        return read_through(open_it, given)
    make = partial(loader_of, open_it, how.workers, how.policy)
    return (play_through if how.policy == "raise" else mend_through)(make, given)


def loader_of(open_it: Callable[[], Store], workers: int, policy: OnError = "raise") -> Loader:
    """Make a loader that plays all sequences in their order."""
    return Loader(
        open_it(), Fixed(BATCH, shuffle=False), num_workers=workers, on_error=policy,
        max_errors=_MOST_ERRORS,
    )  # fmt: skip


@contextmanager
def _done(root: Path, harm: Harm) -> Iterator[None]:
    kept = {name: (root / name).read_bytes() for name in harm.files}
    try:
        harm.act(root)
        yield
    finally:
        for name, content in kept.items():
            (root / name).write_bytes(content)


def flips_of_values(target: Target) -> list[Harm]:
    """Give flips of single bits in values, drawn evenly over all of their bytes."""
    extents = target.subject.values(target.root)
    edges = np.cumsum([0, *(8 * size for _, _, size in extents)])
    harms = []
    for at in target.random.integers(0, edges[-1], target.count).tolist():
        i = int(np.searchsorted(edges, at, side="right")) - 1
        name, position, _ = extents[i]
        harms.append(_flip(name, 8 * position + at - int(edges[i])))
    return harms


def flips_of_the_rest(target: Target) -> list[Harm]:
    """Give flips of single bits in all that is no value: metadata, footers, lengths, manifest."""
    inside: dict[str, list[tuple[int, int]]] = {}
    for name, position, size in target.subject.values(target.root):
        inside.setdefault(name, []).append((8 * position, 8 * (position + size)))
    harms: list[Harm] = []
    while len(harms) < target.count:  # ends: values are never all of a file
        name = target.names[int(target.random.integers(len(target.names)))]
        bit = int(target.random.integers(8 * _size(target, name)))
        if not any(first <= bit < stop for first, stop in inside.get(name, ())):
            harms.append(_flip(name, bit))
    return harms


def _size(target: Target, name: str) -> int:
    return (target.root / name).stat().st_size


def _flip(name: str, bit: int) -> Harm:
    return Harm(f"bit {bit} of {name}", lambda root: damage.flip_bit(root / name, bit), (name,))


def _cut(name: str, size: int) -> Harm:
    return Harm(f"{name} cut to {size}", lambda root: damage.cut(root / name, size), (name,))


def cuts(target: Target) -> list[Harm]:
    """Give cuts at any byte."""
    chosen = [target.names[i % len(target.names)] for i in range(target.count)]
    return [_cut(name, int(target.random.integers(_size(target, name)))) for name in chosen]


def cuts_of_blocks(target: Target) -> list[Harm]:
    """Give cuts at multiples of 512 bytes, where a tar would look whole."""
    harms = []
    for i in range(target.count):
        name = target.names[i % len(target.names)]
        blocks = -(-_size(target, name) // 512)
        harms.append(_cut(name, 512 * int(target.random.integers(1, max(2, blocks)))))
    return harms


def emptied(target: Target) -> list[Harm]:
    """Give files of no bytes."""
    return [_cut(name, 0) for name in target.names[: target.count]]


def zeroed(target: Target) -> list[Harm]:
    """Give pages of zeros over values, one after the other."""
    pages = {
        (name, page)
        for name, position, size in target.subject.values(target.root)
        for page in range(position // damage.PAGE, -(-(position + size) // damage.PAGE))
    }
    return [_zero(name, page) for name, page in sorted(pages)[: target.count]]


def _zero(name: str, page: int) -> Harm:
    return Harm(f"page {page} of {name}", lambda root: damage.zero_page(root / name, page), (name,))


def removed(target: Target) -> list[Harm]:
    """Give files that are gone."""
    return [_remove(name) for name in target.names[: target.count]]


def _remove(name: str) -> Harm:
    return Harm(f"{name} removed", lambda root: damage.remove(root / name), (name,))


def swapped(target: Target) -> list[Harm]:
    """Give files in each other's place, those of equal size first."""
    by_size = sorted(target.names, key=lambda name: _size(target, name))
    pairs = sorted(
        pairwise(by_size), key=lambda pair: _size(target, pair[1]) - _size(target, pair[0])
    )
    return [_swap(one, other) for one, other in pairs[: target.count]]


def _swap(one: str, other: str) -> Harm:
    return Harm(
        f"{one} and {other} swapped",
        lambda root: damage.swap(root / one, root / other), (one, other),
    )  # fmt: skip


def stale(target: Target) -> list[Harm]:
    """Give files of an older write among newer ones: of the same sequences with other values."""
    older = target.root.with_name("older")
    given = target.subject.dataset()
    target.subject.write(older, [{**row, "y": row["y"] + 1} for row in given])
    contents = {name: (older / name).read_bytes() for name in target.names}
    return [
        _stale(name, content)
        for name, content in contents.items()
        if content != (target.root / name).read_bytes()
    ][: target.count]


def _stale(name: str, content: bytes) -> Harm:
    return Harm(f"older {name}", lambda root: damage.put_back(root / name, content), (name,))
