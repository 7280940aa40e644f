"""Loaders of any world over one store, and what each of them must deliver."""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from seqdata.loading.loader import Loader
from seqdata.protocols import Policy
from seqdata.storage.memory import MemoryStore
from seqdata_testing.loaders import (
    check_changing_worlds,
    check_content,
    check_resumes,
    check_steps,
    check_totals,
    check_worlds,
)
from tests.properties.noise import noisy


@dataclass(frozen=True)
class Loaders:
    """Make a loader per world; pickles."""

    store: MemoryStore
    policy: Policy
    seed: int = 0
    prefetch: int = 0
    num_workers: int = 0
    transform: Callable | None = noisy

    def __call__(self, world):
        return Loader(
            self.store, self.policy, world=world, seed=self.seed, prefetch=self.prefetch,
            num_workers=self.num_workers, transform=self.transform,
        )  # fmt: skip


def check_rows(make, size, data, *, epoch, epochs):
    """Raise unless all ranks, and loaders that continue on other worlds, deliver the same rows.

    Args:
        make: Makes the loaders.
        size: Ranks.
        data: Draws where runs stop, and on how many ranks they continue.
        epoch: In which they stop.
        epochs: How many are compared.
    """
    if make.transform is None:
        check_content(make, make.store, size=size)
    check_steps(make, (1, size))
    check_totals(make, size)
    check_worlds(make, (size,), epochs=epochs)
    cuts = sorted(data.draw(st.sets(st.integers(0, 6), max_size=2)))
    check_resumes(make, size, cuts, epoch=epoch)
    legs = data.draw(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 4)), max_size=2))
    check_changing_worlds(make, [*legs, (data.draw(st.integers(1, 8)), 0)])
