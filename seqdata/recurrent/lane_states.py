"""LaneStates: the recurrent state of each lane, carried from chunk to chunk by the module.

It is a plain attribute of a module and no buffer, since DistributedDataParallel overwrites buffers
with rank 0's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, ResumeError
from seqdata.recurrent.cells import Recurrent, make_cell, to_features
from seqdata.recurrent.continuity import advance, check_continues, starts_within
from seqdata.recurrent.forward import run
from seqdata.recurrent.lane_table import NO_BATCH, LaneTable, detach_state, merge_tables
from seqdata.recurrent.trees import Tree, map_leaves, to_device, where_rows

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
        self._tables: dict[str, LaneTable] = {}
        self._previous: dict[str, LaneTable | None] = {}  # as they were before their latest batch
        self._lost_batches: dict[str, tuple[int, int]] = {}  # batches whose states are lost

    @property
    def has_initial(self) -> bool:
        """Whether sequences begin with a state that was given, and not with zeros."""
        return self._initial is not None

    def take(self, batch: SequenceBatch, table: str | None = None) -> Tree | None:
        """Return the state of each row: where its lane stopped, or anew where a sequence begins.

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
        current = self._find_table(name, batch, lanes)
        start = self._initial_rows(batch)
        if current is None:
            return start
        state, batch_numbers = current.select_rows(lanes, batch.weight.device)
        return self._row_states(batch, state, batch_numbers, start)

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
        cell = make_cell(rnn, self._dim)
        if isinstance(x, str):
            padded = batch if batch.layout == "padded" else batch.as_layout("padded")
            x = to_features(rnn, padded[x], x)
        start = self._initial_rows(batch)
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
        current = self._find_table(name, batch, lanes)
        state = detach_state(state, len(batch), self._dim)
        active = (batch.on_cpu("weight") > 0) & (batch.lengths > 0)
        batch_numbers = (batch.number,) * len(lanes)
        if not bool(active.all()):
            state, batch_numbers = self._merge_states(batch, current, state, active)
        progress = advance(batch, lanes, None if current is None else current.progress)
        self._previous[name] = current
        self._tables[name] = LaneTable(progress, batch_numbers, state, self._dim)

    def state_dict(self) -> dict[str, Any]:
        """Return states of this rank's lanes in all tables, by lane: ints and tensors on the CPU.

        Together with the loader's state it makes a plain loop go on exactly. With several ranks
        each has its own lanes: save what ``gathered`` gives.
        """
        return {"version": STATE_VERSION, "tables": self._tables_as_dicts()}

    def gathered(self, group: Any = None) -> dict[str, Any]:
        """Return what ``state_dict`` gives, with the lanes of all ranks; every rank must call it.

        Args:
            group: The process group; None: the default one. Where there is none, this is all.

        Raises:
            ResumeError: If ranks stand at different batches.
        """
        own_tables = self._tables_as_dicts()
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return {"version": STATE_VERSION, "tables": own_tables}
        rank_tables = [own_tables] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(rank_tables, own_tables, group=group)
        names = dict.fromkeys(name for tables_of_rank in rank_tables for name in tables_of_rank)
        tables = {
            name: self.joined([tables_of_rank.get(name, {}) for tables_of_rank in rank_tables])
            for name in names
        }
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
        tables = {
            name: LaneTable.from_dict(saved_table, self._dim, name)
            for name, saved_table in saved.items()
        }
        self._tables, self._previous = tables, {}

    def replace_states(self, table: str, change: Callable[[Tree], Tree]) -> None:
        """Replace the states of a table; which batch each is of stays as it is.

        For layers that other processes run: each has put back those of its own layers only.

        Args:
            table: Its name; nothing is done if there is none.
            change: Takes the states of all lanes, and returns some of the same shapes.

        Raises:
            ConfigError: If the states have other lanes.
        """
        current = self._tables.get(table)
        if current is not None:
            state = detach_state(change(current.state), len(current.progress.lanes), self._dim)
            self._tables[table] = replace(current, state=state)

    def saved(self, table: str, epoch: int, number: int) -> dict[str, Any] | None:
        """Return a table of this rank as it was before a batch; empty: none is in use; None: lost.

        The latest batch can be taken back: where its step failed, it is trained again.

        Args:
            table: Its name.
            epoch: Of the batch.
            number: Of the batch, from 1.
        """
        for lane_table in (self._tables.get(table), self._previous.get(table)):
            if lane_table is not None and (
                lane_table.progress.epoch,
                lane_table.progress.number,
            ) == (epoch, number - 1):
                return lane_table.as_dict()
        return None if table in self._tables else {}

    def joined(self, saved: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what ranks have ``saved`` of a table as one.

        Raises:
            ResumeError: If ranks stand at different batches.
        """
        return merge_tables([saved_table for saved_table in saved if saved_table], self._dim)

    def restore(self, table: str, saved: Mapping[str, Any], epoch: int, number: int) -> None:
        """Go on with a table that was saved before a batch.

        Args:
            table: Its name.
            saved: What ``saved`` gave, of all ranks (``merge_tables``).
            epoch: Of the batch.
            number: Of the batch, from 1.

        Raises:
            ResumeError: If it is damaged, or of another batch.
        """
        restored = LaneTable.from_dict(saved, self._dim, table)
        progress = restored.progress
        if (progress.epoch, progress.number) != (epoch, number - 1):
            raise ResumeError(
                f"lanes: the saved table {table!r} is of batch {progress.number} of epoch "
                f"{progress.epoch}, must be of batch {number - 1} of epoch {epoch}; resume from a "
                "checkpoint as a Trainer saved it"
            )
        self._tables[table] = restored
        self._previous.pop(table, None)

    def forgive(self, table: str, epoch: int, number: int) -> None:
        """Let a batch come whose states are lost: its sequences go on as if they began."""
        self._tables.pop(table, None)
        self._lost_batches[table] = epoch, number

    def _tables_as_dicts(self) -> dict[str, Any]:
        return {name: table.as_dict() for name, table in self._tables.items()}

    def _find_table(
        self, name: str, batch: SequenceBatch, lanes: tuple[int, ...]
    ) -> LaneTable | None:
        """Return what a batch goes on with; None: nothing."""
        current = self._tables.get(name)
        if batch.number == 0 or (current is None and self._is_forgiven(name, batch)):
            return None
        check_continues(None if current is None else current.progress, batch, lanes, name)
        return current

    def _is_forgiven(self, name: str, batch: SequenceBatch) -> bool:
        return self._lost_batches.get(name) == (batch.epoch, batch.number)

    def _initial_rows(self, batch: SequenceBatch) -> Tree | None:
        """Return the learned start, once per row; gradients flow into it."""
        if self._initial is None:
            return None
        initial = self._initial() if callable(self._initial) else self._initial

        def expand(leaf: Tensor) -> Tensor:
            row = leaf.unsqueeze(self._dim)
            shape = [-1] * row.ndim
            shape[self._dim] = len(batch)
            return row.expand(shape)

        return map_leaves(expand, initial)

    def _row_states(
        self, batch: SequenceBatch, state: Tree, batch_numbers: tuple[int, ...], start: Tree | None
    ) -> Tree:
        """Return the states of rows; a row begins where its sequence does, or without a state."""
        resets = batch.on_cpu("reset")
        mask = resets if batch.reset is None else batch.reset
        if min(batch_numbers) == NO_BATCH:
            lost = (torch.tensor(batch_numbers) == NO_BATCH) & (batch.lengths > 0) & ~resets
            if bool(lost.any()):
                resets = resets | lost
                mask = to_device(resets, batch.weight.device)
        if start is not None:  # also where no row begins: its gradient is 0 on every rank alike
            return where_rows(mask, start, state, self._dim)
        if not bool(resets.any()):
            return state
        return where_rows(mask, map_leaves(torch.zeros_like, state), state, self._dim)

    def _merge_states(
        self, batch: SequenceBatch, current: LaneTable | None, state: Tree, active: Tensor
    ) -> tuple[Tree, tuple[int, ...]]:
        """Return the states of active rows, of others what they had; and the batch of each."""
        start = self._initial_rows(batch)
        kept_states = map_leaves(torch.zeros_like, state) if start is None else start
        batch_numbers: tuple[int, ...] = (NO_BATCH,) * len(batch)
        device = batch.weight.device
        if current is not None:
            table_states, batch_numbers = current.select_rows(_lanes_of(batch), device)
            row_states = self._row_states(batch, table_states, batch_numbers, start)
            lost = (
                starts_within(batch) & ~active
            )  # masked, and its lane goes on in another sequence
            restarts = bool(lost.any()) and not batch.carry
            kept_states = (
                where_rows(to_device(lost, device), kept_states, row_states, self._dim)
                if restarts
                else row_states
            )
        kept_states = map_leaves(Tensor.detach, kept_states)
        merged = where_rows(to_device(active, device), state, kept_states, self._dim)
        both = zip(active.tolist(), batch_numbers, strict=True)
        return merged, tuple(batch.number if now else before for now, before in both)


def _lanes_of(batch: SequenceBatch) -> tuple[int, ...]:
    return tuple(batch.on_cpu("lanes").tolist())
