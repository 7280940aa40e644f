"""LaneStates: the recurrent state of each lane, carried from chunk to chunk by the module.

It is a plain attribute of a module and no buffer, since DistributedDataParallel overwrites buffers
with rank 0's. Place in the flow: batches of TBPTT come in, a training step runs its module between
``take`` and ``put``. Reads: batches and states. Makes: states, and what a checkpoint keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, ResumeError
from seqdata.recurrent.cells import Recurrent, cell_of, features_of
from seqdata.recurrent.continuity import after, begun_within, check_next
from seqdata.recurrent.forward import run
from seqdata.recurrent.lane_table import NEVER, Table, joined, kept
from seqdata.recurrent.trees import Tree, mapped, placed, where

STATE_VERSION = 2


class LaneStates:
    """The recurrent states of lanes: taken before a chunk, put back after it.

    Each loader has a table of its own (``batch.loader``), so that training, validation and the
    sanity check never touch each other. In checkpoints of a Trainer with a ``SequenceDataModule``
    the training table is saved by itself, of all ranks, and goes on on any number of them.

    Args:
        initial: The state that a sequence begins with, of one row, so without dimension ``dim``: a
            tensor, or tuples, lists and dicts of them, such as parameters, or a function that gives
            one; gradients flow into it. None: zeros.
        dim: Where rows lie in a state: 1 for torch's LSTM and GRU.

    Raises:
        ConfigError: If ``dim`` is no dimension.

    Examples:
        state = self.lanes.take(batch)
        out, state = self.lanes.run(self.lstm, batch, "x", state)
        self.lanes.put(batch, state)
    """

    def __init__(self, *, initial: Tree | Callable[[], Tree] | None = None, dim: int = 1) -> None:
        if type(dim) is not int or dim < 0:
            raise ConfigError(f"lanes: `dim` is {dim!r}, must be a dimension from 0")
        self._initial = initial
        self._dim = dim
        self._tables: dict[str, Table] = {}
        self._before: dict[str, Table | None] = {}  # as they were before their latest batch
        self._forgiven: dict[str, tuple[int, int]] = {}  # batches whose states are lost

    def take(self, batch: SequenceBatch, table: str | None = None) -> Tree | None:
        """Give the state of each row: where its lane stopped, or anew where a sequence begins.

        Args:
            batch: Of lanes.
            table: Whose states; None: those of the batch's loader.

        Returns:
            Detached, of r rows in dimension ``dim``; None where all begin with zeros and nothing is
            known yet, which torch's modules take as zeros.

        Raises:
            PlanError: If the batch does not follow the one that was put back last.
            ResumeError: If nothing was put back, and this is not batch 0.
            ConfigError: If the batch has no lanes.
        """
        name, lanes = batch.loader if table is None else table, _lanes_of(batch)
        held = self._held(name, batch, lanes)
        start = self._start(batch)
        if held is None:
            return start
        state, put = held.rows(lanes, batch.weight.device)
        return self._begun(batch, state, put, start)

    def run(
        self, rnn: Recurrent, batch: SequenceBatch, x: str | Tensor, state: Tree | None
    ) -> tuple[Tensor, Tree]:
        """Run the rows of a batch, each up to its own end; idle and filler rows are left out.

        Where all rows are full, this is one call of ``rnn``. Else a module of torch gets rows
        packed, and any other callable is called once for each length.

        Args:
            rnn: An LSTM, GRU or RNN of torch, or ``rnn(x, state) -> (out, state)`` over rows first.
            batch: Of lanes.
            x: The field, or a tensor (r, T, *shape).
            state: What ``take`` gave.

        Returns:
            Outputs (r, T, *shape), 0 in padding; and the state of each row at its end, or where the
            next window begins.

        Raises:
            ConfigError: If ``rnn`` reads from both ends, or inputs do not fit the batch.
        """
        cell = cell_of(rnn, self._dim)
        if isinstance(x, str):
            whole = batch if batch.layout == "padded" else batch.as_layout("padded")
            x = features_of(rnn, whole[x], x)
        start = self._start(batch)
        return run(cell, batch, x, start if state is None else state, start)

    def put(self, batch: SequenceBatch, state: Tree, table: str | None = None) -> None:
        """Keep the state of each row for its lane's next chunk; idle and filler rows keep theirs.

        Args:
            batch: What ``take`` was called with.
            state: After the batch, of r rows; it is detached.
            table: As with ``take``.

        Raises:
            PlanError: If the batch does not follow the one that was put back last.
            ConfigError: If the state has other rows than the batch.
        """
        name, lanes = batch.loader if table is None else table, _lanes_of(batch)
        held = self._held(name, batch, lanes)
        state = kept(state, len(batch), self._dim)
        active = (batch.on_cpu("weight") > 0) & (batch.lengths > 0)
        put = (batch.number,) * len(lanes)
        if not bool(active.all()):
            state, put = self._merged(batch, held, state, active)
        seen = after(batch, lanes, None if held is None else held.seen)
        self._before[name] = held
        self._tables[name] = Table(seen, put, state, self._dim)

    def state_dict(self) -> dict[str, Any]:
        """Give the states of this rank's lanes in all tables, by lane: ints and tensors on the CPU.

        Together with the loader's state it makes a plain loop go on exactly. With several ranks
        each has its own lanes: save what ``gathered`` gives.
        """
        return {"version": STATE_VERSION, "tables": self._saved()}

    def gathered(self, group: Any = None) -> dict[str, Any]:
        """Give what ``state_dict`` gives, with the lanes of all ranks; every rank must call it.

        Args:
            group: The process group; None: the default one. Where there is none, this is all.

        Raises:
            ResumeError: If ranks stand at different batches.
        """
        mine = self._saved()
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return {"version": STATE_VERSION, "tables": mine}
        every = [mine] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(every, mine, group=group)
        names = dict.fromkeys(name for one in every for name in one)
        tables = {name: self.joined([one.get(name, {}) for one in every]) for name in names}
        return {"version": STATE_VERSION, "tables": tables}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved states: each rank with those of its lanes, on any number of ranks.

        Raises:
            ResumeError: If they are of another version, or damaged.
        """
        version = state.get("version") if isinstance(state, Mapping) else repr(state)
        if type(version) is not int or version != STATE_VERSION:
            raise ResumeError(
                f"lanes: the saved states have version {version!r:.60}, must be {STATE_VERSION}; "
                "go on with the version of seqdata that saved them"
            )
        saved = state.get("tables")
        if not isinstance(saved, Mapping):
            raise ResumeError(
                f"lanes: `tables` of the saved states is {saved!r:.60}, must be tables by name; it "
                "is damaged"
            )
        tables = {name: Table.of_dict(one, self._dim, name) for name, one in saved.items()}
        self._tables, self._before = tables, {}

    def saved(self, table: str, epoch: int, number: int) -> dict[str, Any] | None:
        """Give a table of this rank as it was before a batch; empty: none is in use; None: lost.

        The latest batch can be taken back: where its step failed, it is trained again.

        Args:
            table: Its name.
            epoch: Of the batch.
            number: Of the batch, from 1.
        """
        for held in (self._tables.get(table), self._before.get(table)):
            if held is not None and (held.seen.epoch, held.seen.number) == (epoch, number - 1):
                return held.as_dict()
        return None if table in self._tables else {}

    def joined(self, saved: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Give what ranks have ``saved`` of a table as one.

        Raises:
            ResumeError: If ranks stand at different batches.
        """
        return joined([one for one in saved if one], self._dim)

    def restore(self, table: str, saved: Mapping[str, Any], epoch: int, number: int) -> None:
        """Go on with a table that was saved before a batch.

        Args:
            table: Its name.
            saved: What ``saved`` gave, of all ranks (``joined``).
            epoch: Of the batch.
            number: Of the batch, from 1.

        Raises:
            ResumeError: If it is damaged, or of another batch.
        """
        made = Table.of_dict(saved, self._dim, table)
        seen = made.seen
        if (seen.epoch, seen.number) != (epoch, number - 1):
            raise ResumeError(
                f"lanes: the saved table {table!r} is of batch {seen.number} of epoch "
                f"{seen.epoch}, must be of batch {number - 1} of epoch {epoch}; resume from a "
                "checkpoint as a Trainer saved it"
            )
        self._tables[table] = made
        self._before.pop(table, None)

    def forgive(self, table: str, epoch: int, number: int) -> None:
        """Let a batch come whose states are lost: its sequences go on as if they began."""
        self._tables.pop(table, None)
        self._forgiven[table] = epoch, number

    def _saved(self) -> dict[str, Any]:
        return {name: table.as_dict() for name, table in self._tables.items()}

    def _held(self, name: str, batch: SequenceBatch, lanes: tuple[int, ...]) -> Table | None:
        """Give what a batch goes on with; None: nothing."""
        held = self._tables.get(name)
        if batch.number == 0 or (held is None and self._is_forgiven(name, batch)):
            return None
        check_next(None if held is None else held.seen, batch, lanes, name)
        return held

    def _is_forgiven(self, name: str, batch: SequenceBatch) -> bool:
        return self._forgiven.get(name) == (batch.epoch, batch.number)

    def _start(self, batch: SequenceBatch) -> Tree | None:
        """Give the learned start, once per row; gradients flow into it."""
        if self._initial is None:
            return None
        initial = self._initial() if callable(self._initial) else self._initial

        def expanded(leaf: Tensor) -> Tensor:
            whole = leaf.unsqueeze(self._dim)
            shape = [-1] * whole.ndim
            shape[self._dim] = len(batch)
            return whole.expand(shape)

        return mapped(expanded, initial)

    def _begun(
        self, batch: SequenceBatch, state: Tree, put: tuple[int, ...], start: Tree | None
    ) -> Tree:
        """Return the states of rows; a row begins where its sequence does, or without a state."""
        resets = batch.on_cpu("reset")
        mask = resets if batch.reset is None else batch.reset
        if min(put) == NEVER:
            lost = (torch.tensor(put) == NEVER) & (batch.lengths > 0) & ~resets
            if bool(lost.any()):
                resets = resets | lost
                mask = placed(resets, batch.weight.device)
        if start is not None:  # also where no row begins: its gradient is 0 on every rank alike
            return where(mask, start, state, self._dim)
        if not bool(resets.any()):
            return state
        return where(mask, mapped(torch.zeros_like, state), state, self._dim)

    def _merged(
        self, batch: SequenceBatch, held: Table | None, state: Tree, active: Tensor
    ) -> tuple[Tree, tuple[int, ...]]:
        """Return the states of active rows, of others what they had; and the batch of each."""
        start = self._start(batch)
        old = mapped(torch.zeros_like, state) if start is None else start
        put: tuple[int, ...] = (NEVER,) * len(batch)
        device = batch.weight.device
        if held is not None:
            had, put = held.rows(_lanes_of(batch), device)
            begun = self._begun(batch, had, put, start)
            lost = begun_within(batch) & ~active  # masked, and its lane goes on in another sequence
            anew = bool(lost.any()) and not batch.carry
            old = where(placed(lost, device), old, begun, self._dim) if anew else begun
        old = mapped(Tensor.detach, old)
        merged = where(placed(active, device), state, old, self._dim)
        both = zip(active.tolist(), put, strict=True)
        return merged, tuple(batch.number if now else before for now, before in both)


def _lanes_of(batch: SequenceBatch) -> tuple[int, ...]:
    return tuple(batch.on_cpu("lanes").tolist())
