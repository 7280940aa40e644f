"""The page of ``seqdata plan --report``: a plan in pictures and figures, in one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.cli._report.mixture import PartStats
from seqdata.cli._report.plots import compare_padding
from seqdata.cli._report.statistics import WorldStats
from seqdata.errors import ConfigError, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.parts import derive_part_seed
from seqdata.plotting.batches import chart_ranks, chart_sizes, list_worst
from seqdata.plotting.lengths import chart_lengths
from seqdata.plotting.page import render_figure, render_line, render_page, render_table
from seqdata.plotting.plans import chart_plan
from seqdata.policies.mix import Mix
from seqdata.policies.zip import Zip
from seqdata.protocols import Policy
from seqdata.sharing import Tail, measure_ranks
from seqdata.storage.local_files import write_atomically

_WORST = 10  # batches in the list of the most expensive ones
_MAX_WORLDS = 4  # numbers of ranks with a picture


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPage:
    """A page about the plan of an epoch.

    Attributes:
        title: Title of the page.
        policy: The policy as a string, for people.
        rules: Number of ranks -> the policy.
        index: Lengths of the planned sequences.
        plans: Number of ranks -> the plan of an epoch that begins on so many; the first is shown.
        label: Name of the policy.
        seed: Seed of the plan.
        epoch: Epoch of the plan.
        tail: Treatment of ranks without a batch in the last step.
        info: Figures of the plan, as ``seqdata plan --json`` has them.
        lists: Sequences that are dropped, split and truncated.
        worlds: Steps for each number of ranks.
        parts: Draws from the parts of a mixture.
    """

    title: str
    policy: str
    rules: Mapping[int, Policy]
    index: SequenceIndex
    plans: Mapping[int, Plan]
    label: str
    seed: int
    epoch: int
    tail: Tail
    info: Mapping[str, Any]
    lists: Mapping[str, Mapping[str, Any]]
    worlds: Sequence[WorldStats]
    parts: Sequence[PartStats]

    def write(self, path: Path) -> None:
        """Write the page, completely or not at all, and create its folder.

        Raises:
            ConfigError: If the path has the suffix of another format.
            OSError: If it cannot be written.
        """
        if path.suffix.lower() not in ("", ".html", ".htm"):
            needed = "a path that ends in .html"
            raise ConfigError(must_be("`--report`", needed, repr(str(path)), "Choose another"))
        path.parent.mkdir(parents=True, exist_ok=True)
        page = render_page(self.title, self._iter_elements())
        write_atomically(path.resolve(), page.encode())

    @property
    def _first(self) -> tuple[Policy, Plan]:
        ranks = next(iter(self.plans))
        return self.rules[ranks], self.plans[ranks]

    def _iter_elements(self) -> Iterator[str]:
        yield from self._iter_summary()
        rule, plan = self._first
        zipped = self._split_zip(rule)
        yield "<h2>Lengths</h2>"
        yield from self._iter_lengths(rule)
        yield "<h2>Padding per batch</h2>"
        for name, own in (zipped or {"": plan}).items():
            yield render_figure(chart_sizes(own.measures, name=name))
        if not zipped and not plan.lanes:
            curves = compare_padding(
                rule, self.index, plan.measures, label=self.label, seed=self.seed
            )
            yield render_figure(curves)
        if plan.lanes:
            yield "<h2>Lanes</h2>"
            yield render_figure(chart_plan(plan, "lanes"))
        if self.parts:
            yield "<h2>Parts</h2>"
            yield from self._iter_parts(rule, plan)
        yield "<h2>Timesteps per rank</h2>"
        yield from self._iter_ranks()
        yield "<h2>Largest batches</h2>"
        for name, own in (zipped or {"": plan}).items():
            yield from self._iter_worst(name, own)

    def _iter_summary(self) -> Iterator[str]:
        info, timesteps, padded = self.info, self.info["timesteps"], self.info["padded"]
        yield render_line(
            f"{info['batches']:,} batches · {timesteps:,} timesteps · "
            f"{100 * (1 - timesteps / padded) if padded else 0.0:.1f} % padding"
        )
        rows = [
            ("policy", self.policy), ("seed", str(self.seed)),
            ("epoch", str(self.epoch)),
            ("order", info["order"] or "that of the policy"),
            ("timesteps after padding", f"{padded:,}"),
            ("sequences", f"{len(self.index):,}"),
        ]  # fmt: skip
        if info["repeats"]:
            rows.append(("rows that repeat a row of their batch", f"{info['repeats']:,}"))
        if info["lanes"]:
            rows.append(("idle rows", f"{100 * info['idle']:.2f} % of {info['lanes']:,} lanes"))
        for name, found in self.lists.items():
            more = ", …" if found["count"] > len(found["first"]) else ""
            first = ", ".join(map(str, found["first"]))
            text = f"{found['count']:,}: {first}{more}" if found["count"] else "0"
            rows.append((f"{name} sequences", text))
        rows.append(("fingerprint", info["fingerprint"]))
        yield render_table(("", ""), rows)

    def _iter_lengths(self, rule: Policy) -> Iterator[str]:
        policies = rule.policies if isinstance(rule, Mix | Zip) else {}
        parts = self.index.parts if policies else {"": self.index}
        for name, index in parts.items():
            axis = policies[name].axis if policies else rule.axis
            yield render_figure(chart_lengths(index.run(axis, 0, len(index)), axis, name=name))

    def _split_zip(self, rule: Policy) -> dict[str, Plan]:
        """Return the plan of each zipped store; empty for others."""
        if not isinstance(rule, Zip):
            return {}
        return {
            name: part.plan(
                self.index.parts[name], seed=derive_part_seed(self.seed, name), epoch=self.epoch
            )
            for name, part in rule.split(self.index).items()
        }

    def _iter_parts(self, rule: Policy, plan: Plan) -> Iterator[str]:
        columns = ("part", "batches", "share, %", "timesteps", "share of timesteps, %", "passes")
        yield render_table(
            columns,
            [
                (
                    part.part, part.batches, round(100 * part.share, 2), part.timesteps,
                    round(100 * part.timestep_share, 2), round(part.passes, 2),
                )
                for part in self.parts
            ],
        )  # fmt: skip
        if isinstance(rule, Mix):
            yield render_figure(chart_plan(plan, "parts"))

    def _iter_ranks(self) -> Iterator[str]:
        uneven = {"fill": "padding batches", "drop": "dropped", "repeat": "repeated"}[self.tail]
        yield render_table(
            ("ranks", "steps", f"{uneven} in the last step", "imbalance"),
            [
                (
                    world.size, world.steps, world.filler + world.left_out + world.repeated,
                    round(world.balance, 4),
                )
                for world in self.worlds
            ],
        )  # fmt: skip
        for size in [size for size in self.plans if size > 1][:_MAX_WORLDS]:
            plans = self._split_zip(self.rules[size]) or {"": self.plans[size]}
            measured = [measure_ranks(own, size, self.tail) for own in plans.values()]
            real, padded = np.sum(measured, axis=0)  # a step of zipped stores has a batch of each
            yield render_figure(chart_ranks(real, padded))

    def _iter_worst(self, name: str, plan: Plan) -> Iterator[str]:
        index = self.index.parts[name] if name else self.index
        rows = []
        for worst in list_worst(plan.measures, _WORST):
            batch = plan.batch(worst["batch"])
            at = int(np.argmax(batch.lengths))
            span = at if batch.rows is None else int(batch.rows[at])
            sequence = int(batch.spans[span, 0])
            key = str(sequence) if index.keys is None else str(index.keys([sequence])[0])
            padding = 100 * (1 - worst["timesteps"] / max(1, worst["padded"]))
            rows.append((*worst.values(), round(padding, 1), key))
        if name:
            yield render_line(name)
        columns = ("batch", "rows", "longest row", "timesteps", "after padding", "padding, %")
        yield render_table((*columns, "longest sequence"), rows)
