"""The Player: plays the epochs of one store under one policy for one rank.

It holds no position: where to play is said each time, so a resume costs what a start costs. Place
in the flow: Store + Policy + World -> batches; Loader and DataModule stand on it. Reads: a store.
Makes: batches.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.batch import SequenceBatch
from seqdata.collators.base import Allocating, Splitting
from seqdata.collators.collate_fn import COLLATED, Samples
from seqdata.collators.padded import Padded
from seqdata.errors import ConfigError, PlanError
from seqdata.index import SequenceIndex
from seqdata.loading.buffer_pool import BlockPool
from seqdata.loading.epoch_batches import Played
from seqdata.loading.fetcher import Fetching
from seqdata.loading.field_reader import Reading, reading_of
from seqdata.loading.options import PlayOptions, Update
from seqdata.loading.output import Output, output_of
from seqdata.loading.pinning import check_device, pinned
from seqdata.loading.pipeline import Assembly, Tools
from seqdata.loading.prefetch import Ahead, Recipe
from seqdata.loading.prefetch_hints import teller_of
from seqdata.loading.transforms.apply import transforming_of
from seqdata.loading.transforms.rng import Crops, Occurrences, occurrences_of
from seqdata.loading.value_options import Values
from seqdata.loading.workers.pool_cache import Crews
from seqdata.plan import Plan
from seqdata.planning.build import describe
from seqdata.policies.windows import Windows
from seqdata.protocols import Collator, Policy, Store, Varying
from seqdata.sharing import RankPlan, share, steps_of
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.dataset_items import ItemForm
from seqdata.storage.views import View

_KEPT_PLANS = 2
_PATIENCE = 5.0  # seconds that a shutdown waits for each thread


class Player:
    """Plays epochs of one store under one policy for one rank.

    Args:
        store: What is read.
        policy: How epochs are batched.
        options: Everything else.

    Raises:
        ConfigError: If policy, fields, shift or output do not fit the store, or the output cannot
            tell the filler rows that there will be.
        PlanError: If no sequence is left to play.
    """

    def __init__(self, store: Store, policy: Policy, options: PlayOptions) -> None:
        self.store = store
        self.policy = policy
        self.options = options
        output = output_of(options.as_tuple, options.as_dict)
        if output is None and isinstance(options.collator, Samples):
            output = Output((COLLATED,), alone=True)
        self._reading = reading_of(store, policy.axis, options, output)
        if output is not None and self._reading.transform is None and options.collator is None:
            output.check(self._reading.names)
        if options.pin_memory:
            check_device()
        self._pool = BlockPool()
        collator, together = self._collator(), isinstance(options.collator or Padded(), Padded)
        fetching, occurrences = self._fetching()
        self._refuse_bounded()
        if options.num_workers and isinstance(collator, Splitting) and not self._reading.bounded:
            fetching = replace(fetching, collate=collator.collated)
        self._tools = Tools(
            fetching, occurrences, collator, output, together, options.on_error, options.tally,
            options.see, options.name,
        )  # fmt: skip
        self._crews = Crews(self._tools.fetching, options)
        self._plans: dict[int, Plan] = {}
        self._lock = threading.RLock()
        self._running: weakref.WeakSet[Ahead[Any]] = weakref.WeakSet()
        self.index: SequenceIndex = self._reading.index()
        self.num_batches: int = policy.num_batches(self.index)
        if not self.num_batches:
            raise _nothing_left(self.index, policy, self._reading)
        self._refuse_unmarked_filler(self.num_batches)
        if options.on_error == "replace" and self._any_plan().lanes:
            raise ConfigError(
                "loader: `on_error` is 'replace' with lanes, must be 'mask' or 'raise': a row of "
                "another sequence would go on from a state that is not its own"
            )

    @property
    def steps(self) -> int:
        """Steps of the first epoch, the same on all ranks; of every one where they do not vary."""
        return self.steps_of(0)

    @property
    def varies(self) -> bool:
        """Whether epochs differ in their number of batches."""
        return isinstance(self.policy, Varying) and self.policy.varies

    def batches_of(self, epoch: int) -> int:
        """Give the number of batches of an epoch."""
        if isinstance(self.policy, Varying) and self.policy.varies:
            return self.policy.num_batches_of(self.index, self._planned(epoch))
        return self.num_batches

    def steps_of(self, epoch: int) -> int:
        """Give the steps of an epoch, the same on all ranks."""
        options, lanes = self.options, self._any_plan().lanes
        return steps_of(self.batches_of(epoch), options.world, options.tail, lanes)

    def plan(self, epoch: int) -> Plan:
        """Give the plan of an epoch; the last two are kept."""
        epoch = self._planned(epoch)
        with self._lock:
            plan = self._plans.pop(epoch, None)
            if plan is None:
                plan = self._made(epoch)
            self._plans[epoch] = plan
            for old in list(self._plans)[:-_KEPT_PLANS]:
                del self._plans[old]
        return plan

    def share(self, epoch: int, first: int) -> RankPlan:
        """Give this rank's steps from batch ``first`` of an epoch on.

        Raises:
            PlanError: If ``first`` lies outside the plan, or no step is left.
            ConfigError: If there will be filler rows that the output cannot tell.
        """
        options, plan = self.options, self.plan(epoch)
        self._refuse_unmarked_filler(len(plan) - first)
        return share(plan, options.world, first=first, tail=options.tail)

    def fingerprint(self, epoch: int) -> str:
        """Digest what an epoch is made from (32 hex digits)."""
        return self.plan(epoch).fingerprint

    def describe(self) -> dict[str, int | str]:
        """Say what a plan depends on, part by part: why a state does not fit."""
        return {
            "data": self.index.fingerprint,
            "policy": describe(self.policy),
            "seed": self.options.seed,
            "shift": self._reading.shift,
        }

    @functools.cached_property
    def transform(self) -> str:
        """The transform's name and a digest of its code, as it was when this was first asked."""
        return self._reading.label

    def changed_transform(self, was: Any) -> str:
        """Return what a resume with another transform than before warns of; empty: it is the same.

        Args:
            was: What a state says; None: it does not say.
        """
        if was is None or was == self.transform:
            return ""
        return (
            f"`transform` was {was}, is {self.transform}: batches from here on are made by other "
            "code than those before; pass the transform that the run began with, unless this is "
            "meant"
        )

    def play(self, epoch: int, first: int, update: Update | None = None) -> Played:
        """Give the batches of an epoch from batch ``first`` of its plan on.

        Nothing happens before the first ``next``. Ends only when all that was planned is delivered,
        or has raised an error of its own in its place.

        Args:
            epoch: Which plan.
            first: Batches of the plan that are trained.
            update: How steps make optimizer updates; None: each by itself.
        """

        def source(steps: RankPlan, begin: int) -> Iterator[Any]:
            numbers = range(begin, len(steps))
            return self._batches(steps, numbers, self._planned(epoch), update or Update())

        return Played(lambda: self.share(epoch, first), source, epoch)

    def again(
        self, steps: RankPlan, epoch: int, number: int, update: Update, *, data: bool = True
    ) -> SequenceBatch:
        """Make one batch again, whole and in this process: the same that ``play`` makes.

        Args:
            steps: The share of any rank.
            epoch: Of its plan.
            number: The step.
            update: How steps make optimizer updates.
            data: Whether it is to be filled; else nothing is read.

        Raises:
            DataError: If what is stored is damaged.
        """
        tools = self._tools
        planned = self._planned(epoch)
        assembly = Assembly(tools, steps, planned, update, tools.fetching.columns)
        return assembly.whole(number) if data else assembly.headed(number)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return self._crews.pids

    def shutdown(self) -> None:
        """End all threads and worker processes; iterations that run end with an error."""
        running = list(self._running)
        self._crews.cancel()
        for ahead in running:
            ahead.close()
        for ahead in running:
            ahead.join(timeout=_PATIENCE)
        self._crews.close()
        self._pool.clear()

    def _batches(
        self, steps: RankPlan, numbers: range, epoch: int, update: Update
    ) -> Iterator[Any]:
        tools = self._tools
        if not self.options.num_workers or not numbers:
            assembly = Assembly(tools, steps, epoch, update, tools.fetching.columns)
            yield from self._played(assembly, numbers)
            return
        with self._crews.run() as run:
            assembly = Assembly(tools, steps, epoch, update, lambda _: run.take())
            run.begin(map(assembly.request, numbers))
            yield from self._played(assembly, numbers)

    def _played(self, assembly: Assembly, numbers: range) -> Iterator[Any]:
        pins = self.options.pin_memory
        if not self.options.prefetch or len(numbers) < 2:
            made = map(assembly.batch, numbers)
            yield from map(pinned, made) if pins else made
            return

        def sized(step: int) -> tuple[Any, int]:
            handed, size = assembly.sized(step)
            return pinned(handed), size

        tell = teller_of(self._reading.store, assembly.share)
        idle = _planner(assembly.share, numbers.start, tell)
        recipe = Recipe(sized if pins else assembly.sized, numbers, idle)
        ahead = Ahead(recipe, self.options.prefetch)
        self._running.add(ahead)
        yield from ahead

    def _planned(self, epoch: int) -> int:
        return 0 if self.options.frozen_epoch else epoch

    def _made(self, epoch: int) -> Plan:
        plan = self.policy.plan(self.index, seed=self.options.seed, epoch=epoch)
        if len(plan) != self.batches_of(epoch):
            raise PlanError(
                f"policy {describe(self.policy)}: epoch {epoch} has {len(plan)} batches, must have "
                f"{self.batches_of(epoch)} as `num_batches` says; change the policy"
            )
        if plan.lookahead and self._reading.shift:
            raise ConfigError(
                f"loader: `shift` is {self._reading.shift} with windows of a horizon of "
                f"{plan.lookahead}, must be 0; use batch.context and batch.future"
            )
        if self._reading.bounded and (plan.lanes or plan.lookahead):
            raise ConfigError(
                f"loader: {describe(self.policy)} needs exact lengths, but the transform's are "
                "random (`.max_length`). Use it in a policy of whole sequences, or measure it."
            )
        plan = plan.with_lookahead(plan.lookahead + self._reading.shift)
        if self.options.plan_ready is not None:
            self.options.plan_ready(plan)
        return plan

    def _fetching(self) -> tuple[Fetching, Occurrences | None]:
        """Give what makes columns, and what tells the drawings of one sequence apart."""
        reading, policy, seed = self._reading, self.policy, self.options.seed
        values = self.options.values if self.options.values != Values() else None
        if reading.transform is None:
            return Fetching(reading, None, values=values), None
        crops: Crops | None = None
        if isinstance(policy, Windows) and policy.random:
            crops = functools.partial(self._crops, policy)
        occurrences = occurrences_of(reading.store, crops)
        return Fetching(reading, transforming_of(reading, seed), values=values), occurrences

    def _crops(self, policy: Windows, spans: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        return policy.crop_numbers(self.index, spans, seed=self.options.seed, epoch=epoch)

    def _collator(self) -> Collator:
        collator = self.options.collator
        if collator is None:
            return Padded(allocate=self._pool.allocate)
        if isinstance(collator, Samples):
            return replace(collator, form=self._item_form())
        if isinstance(collator, Allocating):
            return collator.with_allocator(self._pool.allocate)
        return collator

    def _refuse_bounded(self) -> None:
        """Raise if lengths that are known by a bound do not go with what else is asked."""
        if not self._reading.bounded:
            return
        asked = {"on_error": self.options.on_error, "keep": getattr(self.policy, "keep", None)}
        for name, value in (("on_error", "replace"), ("keep", "last")):
            if asked[name] == value:
                raise ConfigError(
                    f"loader: `{name}`={value!r} needs exact lengths, but the transform's are "
                    f"random (`.max_length`). Leave `{name}` out."
                )
        if isinstance(self.policy, Windows):
            raise ConfigError(
                "loader: windows need exact lengths, but the transform's are random "
                "(`.max_length`). Let the transform keep lengths: it then sees each window."
            )

    def _item_form(self) -> ItemForm | None:
        """Return what a ``collate_fn`` gets, where the data is a Dataset's and as it gave it."""
        reading = self._reading
        if reading.transform is not None or reading.shift:
            return None
        base = reading.store.base if isinstance(reading.store, View) else reading.store
        return base.item_form if isinstance(base, DatasetStore) else None

    def _refuse_unmarked_filler(self, rest: int) -> None:
        """Refuse parts that cannot tell filler rows, where ``rest`` batches leave some."""
        output, size = self._tools.output, self.options.world.size
        if output is None or output.marks_filler or size == 1:
            return
        lanes, uneven = self._any_plan().lanes, self.options.tail == "fill"
        without = max(0, size - lanes) if lanes else -rest % size * uneven
        if without:
            what = f"{lanes} lanes" if lanes else f"{rest} batches"
            raise ConfigError(
                f"loader: {what} on {size} ranks leave {without} without one, and "
                f"{tuple(output.names)} has no 'weight' to tell filler rows by; add 'weight', or "
                "pass tail='drop' (in training also 'repeat')"
            )

    def _any_plan(self) -> Plan:
        return next(iter(self._plans.values()), None) or self.plan(0)


def _planner(
    steps: RankPlan, begin: int, tell: Callable[[int], None] | None
) -> Callable[[int], None]:
    """Give what plans the next block ahead, called with the next step to make.

    Args:
        steps: Of this rank.
        begin: The first step that is made.
        tell: Tells the store what will be read, from now on; None: it has no use for that.
    """
    edge = -1
    if tell is not None:
        tell(begin)

    def plan_ahead(step: int) -> None:
        nonlocal edge
        number = steps.position(step)
        if number >= edge and number < len(steps.plan):
            edge = steps.plan.prepare(number)
            if edge < len(steps.plan):
                steps.plan.prepare(edge)
        if tell is not None:
            tell(step)

    return plan_ahead


def _nothing_left(index: SequenceIndex, policy: Policy, reading: Reading) -> PlanError:
    """Return the error of a plan without a batch, with the lengths that were planned over."""
    lengths = index.lengths_of[reading.axis]
    have = f"they have {lengths.min()} to {lengths.max()} timesteps" if len(lengths) else "none"
    shift = f", and a shift takes {reading.shift} of each" if reading.shift else ""
    windows = isinstance(policy, Windows)
    advice = "no window fits: make it shorter" if windows else "look at `empty` and `too_long`"
    return PlanError(
        f"loader: no sequence of {len(lengths)} is left to play under {describe(policy)}: {have}"
        f"{shift}; {advice}"
    )
