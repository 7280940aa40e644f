"""Trials of damage: change the files of a dataset, read or play it, and restore the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from seqdata.loading.loader import Loader
from seqdata.loading.options import OnError
from seqdata.policies.fixed import Fixed
from seqdata.protocols import Store
from seqdata_testing.faults import damage
from seqdata_testing.faults.on_error import play_on_error
from seqdata_testing.faults.outcome import Outcome
from seqdata_testing.faults.reading import Sequences, play_through, read_through
from seqdata_testing.faults.targets import FaultTarget

BATCH = 4  # sequences
_MOST_ERRORS = 1000


@dataclass(frozen=True, slots=True)
class Damage:
    """One act of damage.

    Attributes:
        label: Name for messages.
        act: Function that changes the files in a folder.
        files: Names of the files that it changes.
    """

    label: str
    act: Callable[[Path], None]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DamageRequest:
    """Request for damage.

    Attributes:
        target: The kind of dataset.
        root: Folder of the data.
        names: The files to damage.
        random: Random generator.
        count: Number of acts of damage.
    """

    target: FaultTarget
    root: Path
    names: list[str]
    random: np.random.Generator
    count: int


DamageMaker = Callable[[DamageRequest], list[Damage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMode:
    """Options of opening and reading a dataset.

    Attributes:
        verify: When checksums are compared.
        workers: Number of workers of the loader that plays it; None: the store is read without a
            loader.
        policy: The loader's ``on_error``.
    """

    verify: str
    workers: int | None = None
    policy: OnError = "raise"


def try_damages(
    target: FaultTarget, mode: ReadMode, harms: DamageMaker, count: int, part: str
) -> list[Outcome]:
    """Try one act of damage after the other on a dataset in the current folder.

    Args:
        target: Dataset to damage.
        mode: Options of opening and reading it.
        harms: Function that returns the damage.
        count: Number of trials.
        part: Kind of files: ``shards``, or the ``others``.
    """
    sequences = target.dataset()
    root = Path("data").resolve()
    target.write(root, sequences)
    open_it = partial(target.open, root, mode.verify)
    found = []
    names = target.shards(root) if part == "shards" else target.others(root)
    for harm in harms(DamageRequest(target, root, names, np.random.default_rng(1), count)):
        with _apply_damage(root, harm):
            found.append(_read_or_play(open_it, mode, sequences))
    return found


def _read_or_play(open_it: Callable[[], Store], mode: ReadMode, sequences: Sequences) -> Outcome:
    if mode.workers is None:
        return read_through(open_it, sequences)
    make = partial(loader_of, open_it, mode.workers, mode.policy)
    return (play_through if mode.policy == "raise" else play_on_error)(make, sequences)


def loader_of(open_it: Callable[[], Store], workers: int, policy: OnError = "raise") -> Loader:
    """Return a loader that plays all sequences in their order."""
    return Loader(
        open_it(), Fixed(BATCH, shuffle=False), num_workers=workers, on_error=policy,
        max_errors=_MOST_ERRORS,
    )  # fmt: skip


@contextmanager
def _apply_damage(root: Path, harm: Damage) -> Iterator[None]:
    contents = {name: (root / name).read_bytes() for name in harm.files}
    try:
        harm.act(root)
        yield
    finally:
        for name, content in contents.items():
            (root / name).write_bytes(content)


def draw_value_flips(request: DamageRequest) -> list[Damage]:
    """Return flips of single bits in values, drawn evenly over all of their bytes."""
    extents = request.target.values(request.root)
    edges = np.cumsum([0, *(8 * size for _, _, size in extents)])
    harms = []
    for at in request.random.integers(0, edges[-1], request.count).tolist():
        i = int(np.searchsorted(edges, at, side="right")) - 1
        name, position, _ = extents[i]
        harms.append(_flip(name, 8 * position + at - int(edges[i])))
    return harms


def draw_other_flips(request: DamageRequest) -> list[Damage]:
    """Return flips of single bits outside values: in metadata, footers, lengths, manifest."""
    inside: dict[str, list[tuple[int, int]]] = {}
    for name, position, size in request.target.values(request.root):
        inside.setdefault(name, []).append((8 * position, 8 * (position + size)))
    harms: list[Damage] = []
    while len(harms) < request.count:  # ends: values are never all of a file
        name = request.names[int(request.random.integers(len(request.names)))]
        bit = int(request.random.integers(8 * _size(request, name)))
        if not any(first <= bit < stop for first, stop in inside.get(name, ())):
            harms.append(_flip(name, bit))
    return harms


def _size(request: DamageRequest, name: str) -> int:
    return (request.root / name).stat().st_size


def _flip(name: str, bit: int) -> Damage:
    return Damage(f"bit {bit} of {name}", lambda root: damage.flip_bit(root / name, bit), (name,))


def _cut(name: str, size: int) -> Damage:
    return Damage(f"{name} cut to {size}", lambda root: damage.cut(root / name, size), (name,))


def draw_cuts(request: DamageRequest) -> list[Damage]:
    """Return truncations at any byte."""
    chosen = [request.names[i % len(request.names)] for i in range(request.count)]
    return [_cut(name, int(request.random.integers(_size(request, name)))) for name in chosen]


def draw_block_cuts(request: DamageRequest) -> list[Damage]:
    """Return truncations at multiples of 512 bytes, where a tar file would look complete."""
    harms = []
    for i in range(request.count):
        name = request.names[i % len(request.names)]
        blocks = -(-_size(request, name) // 512)
        harms.append(_cut(name, 512 * int(request.random.integers(1, max(2, blocks)))))
    return harms


def list_emptied_files(request: DamageRequest) -> list[Damage]:
    """Return truncations of files to 0 bytes."""
    return [_cut(name, 0) for name in request.names[: request.count]]


def list_zeroed_pages(request: DamageRequest) -> list[Damage]:
    """Return overwrites of pages with values by zeros."""
    pages = {
        (name, page)
        for name, position, size in request.target.values(request.root)
        for page in range(position // damage.PAGE, -(-(position + size) // damage.PAGE))
    }
    return [_zero(name, page) for name, page in sorted(pages)[: request.count]]


def _zero(name: str, page: int) -> Damage:
    return Damage(
        f"page {page} of {name}", lambda root: damage.zero_page(root / name, page), (name,)
    )


def list_removed_files(request: DamageRequest) -> list[Damage]:
    """Return removals of files."""
    return [_remove(name) for name in request.names[: request.count]]


def _remove(name: str) -> Damage:
    return Damage(f"{name} removed", lambda root: damage.remove(root / name), (name,))


def list_swapped_files(request: DamageRequest) -> list[Damage]:
    """Return swaps of two files, first of files of equal size."""
    by_size = sorted(request.names, key=lambda name: _size(request, name))
    pairs = sorted(
        pairwise(by_size), key=lambda pair: _size(request, pair[1]) - _size(request, pair[0])
    )
    return [_swap(first, second) for first, second in pairs[: request.count]]


def _swap(first: str, second: str) -> Damage:
    return Damage(
        f"{first} and {second} swapped",
        lambda root: damage.swap(root / first, root / second), (first, second),
    )  # fmt: skip


def list_stale_files(request: DamageRequest) -> list[Damage]:
    """Return replacements of files by those of an older write, with other values."""
    older = request.root.with_name("older")
    sequences = request.target.dataset()
    request.target.write(older, [{**row, "y": row["y"] + 1} for row in sequences])
    contents = {name: (older / name).read_bytes() for name in request.names}
    return [
        _stale(name, content)
        for name, content in contents.items()
        if content != (request.root / name).read_bytes()
    ][: request.count]


def _stale(name: str, content: bytes) -> Damage:
    return Damage(f"older {name}", lambda root: damage.put_back(root / name, content), (name,))
