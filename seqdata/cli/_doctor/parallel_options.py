"""Speedup of splitting data, layers or time over devices, by formula and from counts.

Stages that take c_1 .. c_S for an item need sum(c) + (N - 1) max(c) for N items; with equal stages
the speedup is N S / (N + S - 1). Sent bytes are those of one update, of the process that sends
most; a sum over W processes counts 2 (W - 1) / W of its size, as a ring of sends takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from seqdata.cli._doctor.stack_counts import PartCounts, StackCounts

Cost = Callable[[PartCounts, int], float]
"""Function of a part and a number of rows: cost of a timestep, forward and backward."""

_WEIGHT_COPIES = 3  # gradient and two moments of Adam
_LANE_GROUPS = 4  # lane groups of a ring, as in `RingStrategy`
_SIMPLER = 0.95  # fraction of the best speedup that suffices for a simpler option
NOTHING = "nothing: exact"


@dataclass(frozen=True, slots=True)
class UpdateShape:
    """Batches of an optimizer update on one device.

    Attributes:
        rows: Rows of a batch: lanes, or sequences.
        timesteps: Timesteps of a row: the chunk, or the longest sequence.
        batches: Number of batches of an update.
        is_carried: Whether states are carried from batch to batch, by lane.
    """

    rows: int
    timesteps: int
    batches: int
    is_carried: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelOption:
    """A way to train on several devices, and its gain.

    Attributes:
        axis: Split dimension: ``data``, ``layers``, ``time``, or two of them.
        data: Number of replicas.
        size: Number of stages or parts of a replica.
        formula: Formula of the speedup, with its numbers.
        speedup: Speedup over one device, with stages of their own costs.
        split_backward: Speedup if backward of weights is computed separately; 0: does not apply.
        bubble: Fraction of the devices' time that they wait.
        memory: Bytes of the device that needs most: weights, gradients, Adam, kept values.
        sent: Bytes that the device that sends most sends in an update.
        operations: Operations of an update, by stage or part.
        gives_up: Difference from training on one device.
        why_not: Reason not to use the option; empty if there is none.
        code: Code of the Trainer.
    """

    axis: str
    data: int
    size: int
    formula: str
    speedup: float
    split_backward: float = 0.0
    bubble: float
    memory: int
    sent: int
    operations: tuple[int, ...]
    gives_up: str
    why_not: str = ""
    code: str

    @property
    def devices(self) -> int:
        """Number of devices that are used."""
        return self.data * self.size


def count_cost(part: PartCounts, rows: int) -> float:
    """Return the cost of a timestep from counts: proportional to weights and rows."""
    return float(part.cost * rows)


@dataclass(frozen=True, slots=True)
class OptionTable:
    """Table of the options for a model and the shape of its updates.

    Args:
        counts: Counts of the model.
        shape: Shape of an update.
        accelerator: ``cpu`` or ``gpu``.
        cost: Function that returns the cost of a part, from counts or measured.
    """

    counts: StackCounts
    shape: UpdateShape
    accelerator: str
    cost: Cost = count_cost

    def list_options(self, devices: int) -> Iterator[ParallelOption]:
        """Yield the options for a number of devices: one device first, mixed ones last."""
        yield self.data(1)
        yield self.data(devices)
        yield self.layers(min(devices, max(2, len(self.counts.layers))), 1)
        yield self.time(devices, 1)
        for data in (number for number in range(2, devices) if devices % number == 0):
            yield self.layers(devices // data, data)
            yield self.time(devices // data, data)

    def data(self, replicas: int) -> ParallelOption:
        """Return the option that splits rows, or distributes whole batches, to replicas (DDP)."""
        (rows, batches), shape, counts = self._share(replicas), self.shape, self.counts
        alone = shape.batches * self._sum(counts.parts, shape.rows)
        speedup = alone / (batches * self._sum(counts.parts, rows))
        formula = f"B / ceil(B / W) = {shape.rows} / {rows}"
        if not shape.is_carried:
            formula = f"N / ceil(N / W) = {shape.batches} / {batches}"
        option = ParallelOption(
            axis="one device" if replicas == 1 else "data",
            data=replicas,
            size=1,
            formula="1" if replicas == 1 else formula,
            speedup=speedup,
            bubble=1 - speedup / replicas,
            memory=self._memory(counts.parts, rows, shape.timesteps, 1, counts.parameters),
            sent=self._sum_over(replicas, counts.parameters),
            operations=self._count_operations([counts.parts], rows, batches),
            gives_up=NOTHING,
            why_not=self._refuse_replicas(replicas),
            code=self._write_code(replicas, "" if replicas == 1 else '"ddp"'),
        )
        if shape.is_carried and shape.rows < replicas:
            idle = replicas - shape.rows
            reason = f"{shape.rows} rows: {idle} of {replicas} devices have none. Use more lanes"
            return replace(option, why_not=reason)
        return option

    def layers(self, stages: int, data: int) -> ParallelOption:
        """Return the option that splits layers over stages (a wavefront over batches)."""
        (rows, items), shape = self._share(data), self.shape
        cut = self.counts.cut(min(stages, len(self.counts.layers)))
        costs = [self._sum(stage, rows) for stage in cut]
        alone = shape.batches * self._sum(self.counts.parts, shape.rows)
        longest, total = max(costs), sum(costs)
        speedup = alone / (total + (items - 1) * longest)
        memory = max(
            self._memory(stage, rows, shape.timesteps, min(items, len(cut) - number),
                         sum(part.parameters for part in stage))
            for number, stage in enumerate(cut)
        )  # fmt: skip
        strategy = f"WavefrontStrategy({stages}, chunks={items}{_write_data(data)})"
        return ParallelOption(
            axis="layers" if data == 1 else "data x layers",
            data=data,
            size=stages,
            formula=_write_formula("N S / (N + S - 1)", items, stages, data),
            speedup=speedup,
            split_backward=alone / (items * longest + (total - longest) / 3),
            bubble=max(0.0, 1 - speedup / (data * stages)),
            memory=memory,
            sent=self._count_wavefront_bytes(cut, rows, items, data),
            operations=self._count_operations(cut, rows, items),
            gives_up=f"an update is {shape.batches} batches; else {NOTHING}",
            why_not=self._refuse(stages) or self._refuse_replicas(data),
            code=self._write_code(data * stages, strategy),
        )

    def time(self, parts: int, data: int) -> ParallelOption:
        """Return the option that splits each row's timesteps over parts (a ring)."""
        (rows, batches), shape, counts = self._share(data), self.shape, self.counts
        groups = min(_LANE_GROUPS, rows)
        group_rows = -(-rows // groups)
        timesteps = -(-shape.timesteps // parts)
        own = self._sum(counts.parts, group_rows) / parts
        alone = shape.batches / batches * self._sum(counts.parts, shape.rows)
        speedup = alone / ((groups + parts - 1) * own)
        strategy = f"RingStrategy({parts}, lane_groups={groups}{_write_data(data)})"
        option = ParallelOption(
            axis="time" if data == 1 else "data x time",
            data=data,
            size=parts,
            formula=_write_formula("M D / (M + D - 1)", groups, parts, data),
            speedup=speedup,
            split_backward=alone / ((groups + (parts - 1) / 3) * own),
            bubble=max(0.0, 1 - speedup / (data * parts)),
            memory=self._memory(
                counts.parts, group_rows, timesteps, min(groups, parts), counts.parameters
            ),
            sent=self._count_ring_bytes(rows, batches, parts, data),
            operations=tuple(
                n // parts for n in self._count_operations([counts.parts], rows, batches)
            )
            * parts,
            gives_up=NOTHING,
            why_not=self._refuse(1) or self._refuse_replicas(data),
            code=self._write_code(data * parts, strategy),
        )
        if shape.timesteps < parts and not option.why_not:
            return replace(option, why_not=f"rows of {shape.timesteps} timesteps: too short")
        return option

    def _share(self, replicas: int) -> tuple[int, int]:
        """Return the number of rows of a replica's batches, and of its batches in an update.

        Lanes of a batch are split over replicas; batches of whole rows are distributed.
        """
        rows, batches = self.shape.rows, self.shape.batches
        if self.shape.is_carried:
            return -(-rows // replicas), batches
        return rows, -(-batches // replicas)

    def _refuse_replicas(self, replicas: int) -> str:
        """Return why batches of whole rows cannot be distributed; empty if they can."""
        batches = self.shape.batches
        if self.shape.is_carried or batches % replicas == 0:
            return ""
        more = -(-batches // replicas) * replicas
        found = f"{batches} batch{'es' * (batches > 1)} of an update"
        return f"{found}: no multiple of {replicas} replicas. Pass --chunks {more}"

    def _refuse(self, stages: int) -> str:
        """Return why layers or time of the model cannot be split; empty if they can."""
        counts = self.counts
        if counts.is_bidirectional:
            return (
                "bidirectional: the backward direction begins where the sequence ends, so no layer "
                "and no part of the time can begin before the others have ended"
            )
        if len(counts.recurrent) > 1:
            names = " and ".join(counts.recurrent)
            return f"several recurrent parts ({names}): one nn.LSTM with num_layers can be split"
        if stages > len(counts.layers):
            found = len(counts.layers)
            return f"{found} recurrent layer{'s' * (found > 1)}: too few for {stages} stages"
        if counts.names_parts is False:
            return (
                "the module does not name its parts: write `parallel_stages`, `parallel_inputs` "
                "and `parallel_nll`"
            )
        return ""

    def _sum(self, parts: Sequence[PartCounts], rows: int) -> float:
        return sum(self.cost(part, rows) for part in parts)

    def _memory(
        self, parts: Sequence[PartCounts], rows: int, timesteps: int, graphs: int, stepped: int
    ) -> int:
        """Return the bytes of a device.

        Args:
            parts: Parts that the device runs.
            rows: Rows of an item.
            timesteps: Timesteps of an item.
            graphs: Number of items that wait for their backward at a time.
            stepped: Number of weights with gradients on the device, which holds all weights.
        """
        activations = sum(part.kept for part in parts) * rows * timesteps * graphs
        weights = self.counts.parameters + _WEIGHT_COPIES * stepped
        return int((weights + activations) * self.counts.itemsize)

    def _count_wavefront_bytes(
        self, cut: Sequence[Sequence[PartCounts]], rows: int, batches: int, data: int
    ) -> int:
        steps = batches * rows * self.shape.timesteps * self.counts.itemsize
        widths = [0, *(stage[0].inputs for stage in cut[1:]), 0]  # at the bounds of stages
        sums = [
            self._sum_over(data, sum(part.parameters for part in stage))
            + self._sum_over(len(cut), self.counts.shared)
            for stage in cut
        ]
        pairs = zip(widths, widths[1:], sums, strict=False)
        return max(steps * (left + right) + summed for left, right, summed in pairs)

    def _count_ring_bytes(self, rows: int, batches: int, parts: int, data: int) -> int:
        state = sum(layer.state for layer in self.counts.layers)
        # right and left; the last part sends left, and lanes' states to all at the end
        passes = 2 if parts > 2 or self.shape.is_carried else 1
        states = passes * batches * rows * state * self.counts.itemsize
        weights = self.counts.parameters
        return states + self._sum_over(parts, weights) + self._sum_over(data, weights)

    def _sum_over(self, processes: int, values: int) -> int:
        return 2 * (processes - 1) * values * self.counts.itemsize // processes

    def _count_operations(
        self, cut: Sequence[Sequence[PartCounts]], rows: int, batches: int
    ) -> tuple[int, ...]:
        steps = 6 * rows * self.shape.timesteps * batches
        return tuple(steps * sum(part.cost for part in stage) for stage in cut)

    def _write_code(self, devices: int, strategy: str) -> str:
        name = strategy.partition("(")[0] if "(" in strategy else ""
        head = f"from seqdata_models.parallel import {name}\n" if name else ""
        chosen = f", strategy={strategy}" if strategy else ""
        batches = self.shape.batches
        every = ""
        if batches > 1 and self.shape.is_carried:
            every = f", accumulate_grad_batches={batches}"
        elif batches > 1:  # it sets the Trainer's own, from the number of replicas
            head += f"data = SequenceDataModule(..., batches_per_update={batches})\n"
        return f'{head}Trainer(accelerator="{self.accelerator}", devices={devices}{chosen}{every})'


def choose_option(options: Sequence[ParallelOption]) -> ParallelOption:
    """Return the option to use: the fastest possible one, or a simpler one about as fast."""
    possible = [option for option in options if not option.why_not] or list(options[:1])
    best = max(option.speedup for option in possible)
    return next(option for option in possible if option.speedup >= _SIMPLER * best)


def require_memory(option: ParallelOption, memory: int | None) -> ParallelOption:
    """Return the option, with a reason against it if a device's memory does not suffice."""
    if memory is None or option.memory <= memory or option.why_not:
        return option
    reason = (
        f"needs {option.memory / 2**30:.2f} GiB, but a device has {memory / 2**30:.2f} GiB free"
    )
    return replace(option, why_not=reason)


def _write_formula(form: str, items: int, size: int, data: int) -> str:
    replicas = f"{data} x " if data > 1 else ""
    return f"{'W ' if data > 1 else ''}{form} = {replicas}{items} x {size} / {items + size - 1}"


def _write_data(data: int) -> str:
    return f", data={data}" if data > 1 else ""
