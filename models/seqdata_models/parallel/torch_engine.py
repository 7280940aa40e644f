"""Wavefront with the schedules of ``torch.distributed.pipelining``, for static shapes.

That package sends tensors of one fixed shape, and does not support a plain ``nn.LSTM``, because
outputs and gradients are transposed views, and a state would be sent to the next stage or shared by
all micro-batches. Here, a stage sends activations and their gradients in one layout, and keeps the
states of its layers from micro-batch to micro-batch. Place in the flow: replaces the engine of
``Wavefront``. Reads: batches of fixed chunks. Makes: the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import pipelining

from seqdata import ConfigError, SequenceBatch
from seqdata_models.parallel.mesh import Mesh
from seqdata_models.parallel.slices import padded_length
from seqdata_models.parallel.stage import Item, Stage, copy_lanes, iter_items, move_layers
from seqdata_models.parallel.wavefront import Wavefront

SCHEDULES: dict[str, Any] = {
    "GPipe": pipelining.ScheduleGPipe,
    "1F1B": pipelining.Schedule1F1B,
    "ZBV": pipelining.ScheduleZBVZeroBubble,
}


class TorchWavefront(Wavefront):
    """``Wavefront`` with a schedule of ``torch.distributed.pipelining``.

    Micro-batches are the groups of rows of all chunks of an update. All must have the same number
    of rows. Micro-batches with fewer timesteps are padded before they are sent.

    Args:
        module: Module that names its parts (``SupportsStages``).
        mesh: Mesh of processes, with ``mesh.size`` stages, or twice as many for ``ZBV``.
        lane_groups: Number of groups of rows of each chunk that follow each other.
        schedule: ``GPipe``, ``1F1B``, or ``ZBV``. With ``ZBV``, process s of S has the stages s and
            2 S - 1 - s, and weight gradients are deferred (``split_backward``).
        seed: Seed of dropout masks.

    Raises:
        ConfigError: If the schedule is unknown, the mesh has one process, the module cannot be
            split, or ``lane_groups`` is not a positive integer.
    """

    def __init__(
        self,
        module: nn.Module,
        mesh: Mesh,
        lane_groups: int = 1,
        *,
        schedule: str = "1F1B",
        seed: int = 0,
    ) -> None:
        check_schedule(schedule)
        if mesh.size == 1:
            raise ConfigError(
                "wavefront: `stages` must be at least 2 with engine='torch', but is 1. Use "
                "engine='seqdata'."
            )
        self._schedule_name = schedule
        super().__init__(module, mesh, lane_groups, seed=seed, split_backward=schedule == "ZBV")
        self._items: list[Item] = []
        self._key: tuple[int, int, int] | None = None
        self._schedule: Any = None
        self._error: BaseException | None = None

    def place_stages(self) -> tuple[int, ...]:
        """Return the position of the process of each stage; with ZBV, each process has two."""
        places = tuple(range(self.mesh.size))
        return (*places, *reversed(places)) if self._schedule_name == "ZBV" else places

    def _make_stages(self) -> dict[int, Stage]:
        own = [n for n, place in enumerate(self.placement) if place == self.mesh.position]
        lanes = [self.stack.lanes, *(copy_lanes(self.stack.lanes) for _ in own[1:])]
        return {
            n: Stage(self.stack, self.stages[n], stage_lanes)
            for n, stage_lanes in zip(own, lanes, strict=True)
        }

    def _run(self, batches: Sequence[SequenceBatch], scale: float) -> Tensor:
        self._begin(batches, scale)
        self._items = list(iter_items(batches, self.lane_groups))
        width = self._check_shapes()
        key = len(self._items), len(self._items[0].part.batch), width
        if key != self._key:  # buffers have the shapes of one update
            self._key, self._schedule = key, self._make_schedule(*key)
        first, *others = self._own.values()
        for stage in others:  # a checkpoint may have been loaded
            stage.lanes = copy_lanes(self.stack.lanes)
        numbers = torch.arange(len(self._items), device="cpu")
        self._error = None
        try:
            with self.mesh.computing(is_computing=False):  # but in a forward
                self._schedule.step(
                    *((numbers,) if 0 in self._own else ()),
                    target=numbers if self.is_last else None, number=numbers, return_outputs=False,
                )  # fmt: skip
        except Exception as error:
            raise (self._error or error) from None
        for stage in others:
            for table in sorted(self._tables):
                move_layers(first, stage, table)
        return self._total

    def _check_shapes(self) -> int:
        """Return the number of timesteps of the longest micro-batch.

        Raises:
            ConfigError: If micro-batches differ in their number of rows, or are too few.
        """
        rows = [len(item.part.batch) for item in self._items]
        for item, count in zip(self._items, rows, strict=True):
            if count != rows[0]:
                raise ConfigError(
                    f"wavefront: all micro-batches must have the {rows[0]} rows of the first with "
                    f"engine='torch', but {item.describe()}, has {count}. Use engine='seqdata', "
                    "which takes ragged shapes, or lanes that are a multiple of `lane_groups`."
                )
        least = 2 * self.mesh.size - 1 if self._schedule_name == "ZBV" else 1
        if len(rows) < least:
            raise ConfigError(
                f"wavefront: an update must have at least {least} micro-batches (chunks x lane "
                f"groups) with schedule={self._schedule_name!r}, but has {len(rows)}. Use "
                "engine='seqdata', which takes any number, or more of them."
            )
        return max(padded_length(item.part.batch) for item in self._items)

    def _make_schedule(self, items: int, rows: int, width: int) -> Any:
        """Return a schedule of torch over the stages of this process."""
        stages = [
            pipelining.PipelineStage(
                _StageModule(self, stage, number, width), number, len(self.stages),
                torch.device(self.stack.weight.device), self._make_meta(number, rows, width),
                self._make_meta(number + 1, rows, width), group=self.mesh.group,
                dw_builder=self._take_weights if self.weights is not None else None,
            )
            for number, stage in self._own.items()
        ]  # fmt: skip
        is_short = items < self.mesh.size  # at the end of an epoch; 1F1B takes no fewer
        name = "GPipe" if self._schedule_name == "1F1B" and is_short else self._schedule_name
        make = SCHEDULES[name]
        return make(
            stages if self._schedule_name == "ZBV" else stages[0],
            items, loss_fn=self._make_loss, scale_grads=False,
        )  # fmt: skip

    def _make_meta(self, number: int, rows: int, width: int) -> Tensor:
        """Return a tensor of the form of a stage's input; after the last stage, a placeholder."""
        if number == 0:
            return torch.empty(1, dtype=torch.int64, device="meta")
        weight = self.stack.weight
        size = 1
        if number < len(self.stages):
            layer: Any = self.stages[number][0].module
            size = layer.input_size
        return torch.empty(rows, width, size, dtype=weight.dtype, device="meta", requires_grad=True)

    def _make_loss(self, out: Tensor, number: Tensor) -> Tensor:
        item = self._items[int(number)]
        return self._score(out[:, : padded_length(item.part.batch)], item)

    def _take_weights(self) -> Callable[[], None]:
        return (lambda: None) if self.weights is None else self.weights.take()

    def run_item(self, stage: Stage, number: int, x: Tensor, width: int | None) -> Tensor:
        """Run a micro-batch through a stage.

        Args:
            stage: Stage of this process.
            number: Number of the micro-batch in its update.
            x: Output of the previous stage, (r, width, size); for the first stage, a placeholder.
            width: Number of timesteps that stages send; None: this is the first stage.

        Returns:
            (r, T, ...), where T is the number of timesteps of the micro-batch.
        """
        item = self._items[number]
        try:
            self.mesh.at(f"forward of {item.describe()}")
            with self.mesh.computing(is_computing=True):
                if width is None:
                    return stage.forward(item, self.stack.inputs(item.part.batch))
                x = _Contiguous.apply(x)  # type: ignore[no-untyped-call]
                return stage.forward(item, x[:, : padded_length(item.part.batch)])
        except BaseException as error:
            self._error = error  # torch raises a RuntimeError in its place
            raise


class _StageModule(nn.Module):
    """Module that runs a stage for torch's pipelining, and returns one contiguous tensor."""

    def __init__(self, engine: TorchWavefront, stage: Stage, number: int, width: int) -> None:
        super().__init__()
        self._engine, self._stage, self._width = [engine], stage, width
        self._is_first = number == 0
        self._is_last = number == len(engine.stages) - 1

    def forward(self, x: Tensor, number: Tensor) -> Tensor:
        """Return the input of the next stage, (r, width, size)."""
        (engine,) = self._engine
        width = None if self._is_first else self._width
        out = engine.run_item(self._stage, int(number), x, width)
        if self._is_last:
            return out
        missing = self._width - out.shape[1]
        out = nn.functional.pad(out, (0, 0, 0, missing)) if missing else out
        return out.to(engine.stack.weight.dtype).contiguous()  # autocast computes in another one


class _Contiguous(torch.autograd.Function):
    """Identity with a contiguous gradient, because gloo cannot send views."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        del ctx
        return gradient.contiguous()


def check_schedule(schedule: str) -> None:
    """Raise if a schedule is unknown.

    Raises:
        ConfigError: If ``schedule`` is not ``GPipe``, ``1F1B`` or ``ZBV``.
    """
    if schedule not in SCHEDULES:
        raise ConfigError(
            f"wavefront: `schedule` must be one of {', '.join(map(repr, SCHEDULES))}, but is "
            f"{schedule!r}."
        )
