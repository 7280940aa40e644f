"""``LaneStates``: the recurrent states of lanes, which a module carries from chunk to chunk.

A ``LaneStates`` is a plain attribute of a module, not a buffer, because DistributedDataParallel
overwrites buffers with those of rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, ResumeError, must_be
from seqdata.recurrent.autocast import check_autocast
from seqdata.recurrent.cells import Recurrent, make_cell, to_features
from seqdata.recurrent.continuity import advance, check_continues, starts_within
from seqdata.recurrent.forward import run
from seqdata.recurrent.lane_table import NO_BATCH, LaneTable, detach_state, merge_tables
from seqdata.recurrent.trees import Tree, iter_contained, map_leaves, to_device, where_rows

STATE_VERSION = 2


class LaneStates:
    """Recurrent states of lanes, to ``take`` before a chunk and to ``put`` after it.

    Each loader has a separate table of states (``batch.loader``), so that training, validation and
    the sanity check do not interfere. A Trainer with a ``SequenceDataModule`` saves the training
    tables of all ranks in its checkpoints, and can resume them on any number of ranks. For this,
    the object must be an attribute of a module, or in a list, tuple or dict that is one.

    Args:
        initial: Initial state of a sequence, without the dimension ``dim`` of rows: a tensor, or
            tuples, lists and dicts of tensors, such as parameters, or a function that returns one
            of these. Gradients flow into it. None: zeros.
        dim: Dimension of rows in a state; 1 for the LSTM and GRU of torch.

    Raises:
        ConfigError: If ``dim`` is not an integer of at least 0.

    Examples:
        state = self.lanes.take(batch)
        out, state = self.lanes.run(self.lstm, batch, "x", state)
        self.lanes.put(batch, state)
    """

    def __init__(self, *, initial: Tree | Callable[[], Tree] | None = None, dim: int = 1) -> None:
        if type(dim) is not int or dim < 0:
            raise ConfigError(must_be("lanes: `dim`", "a dimension from 0", repr(dim)))
        self._initial = initial
        self._dim = dim
        self._tables: dict[str, LaneTable] = {}
        self._previous: dict[str, LaneTable | None] = {}  # states before the latest batch
        self._lost_batches: dict[str, tuple[int, int]] = {}  # by loader: their states were lost

    @staticmethod
    def find_in(module: nn.Module) -> dict[str, LaneStates]:
        """Return path -> LaneStates, for all of a module and its submodules.

        A path is the name of an attribute, such as ``rnn.lanes``, or of an item in a list, tuple or
        dict that is one, such as ``rnn.lanes[0]``. Copies of hyperparameters that Lightning keeps
        are skipped.
        """
        attributes = {
            f"{path}.{name}" if path else name: value
            for path, submodule in module.named_modules()
            for name, value in vars(submodule).items()
            if not name.startswith("_hparams")
        }
        direct = {path: item for path, item in attributes.items() if isinstance(item, LaneStates)}
        seen: set[int] = set()
        inner = (iter_contained(LaneStates, path, item, seen) for path, item in attributes.items())
        lane_states: dict[str, LaneStates] = {}
        for path, item in chain(direct.items(), chain.from_iterable(inner)):
            if not any(item is known for known in lane_states.values()):
                lane_states[path] = item
        return lane_states

    @property
    def has_initial(self) -> bool:
        """Whether sequences begin with ``initial`` and not with zeros."""
        return self._initial is not None

    def take(self, batch: SequenceBatch, table: str | None = None) -> Tree | None:
        """Return the state of each row: the state of its lane, or the initial state of a sequence.

        Args:
            batch: A batch with lanes.
            table: Name of the table; None: the table of the batch's loader.

        Returns:
            State with r rows in dimension ``dim``. States of lanes are detached. None if all rows
                begin with zeros and the form of a state is unknown; modules of torch accept it.

        Raises:
            PlanError: If the batch does not follow the batch of the latest ``put``.
            ResumeError: If the batch is not batch 0 of its epoch, and there was no ``put``.
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
        """Run the rows of a batch, each up to its own length; idle and padding rows do not run.

        If all rows are full, ``rnn`` is called once. Otherwise a module of torch receives packed
        rows, and any other callable is called once for each length.

        Args:
            rnn: An LSTM, GRU or RNN of torch, also wrapped by ``torch.compile``, DDP, FSDP or
                Fabric, or a function ``rnn(x, state) -> (out, state)`` with rows as dimension 0 of
                ``x``.
            batch: A batch with lanes.
            x: Name of a field, or a tensor (r, T, *shape).
            state: Result of ``take``.

        Returns:
            Outputs, (r, T, *shape), 0 in padding, and the state of each row at its end, or, with
                overlap, at the beginning of the next chunk.

        Raises:
            ConfigError: If ``rnn`` is bidirectional, if it is a module with an unknown order of
                dimensions, if it needs another ``dim``, if it cannot run under autocast, if it does
                not return a tensor and a state, or if inputs do not match the batch.
        """
        cell = make_cell(rnn, self._dim)
        if isinstance(x, str):
            padded = batch if batch.layout == "padded" else batch.as_layout("padded")
            x = to_features(cell, padded[x], x)
        if cell.layer is not None:
            check_autocast(cell.layer, x.device)
        start = self._initial_rows(batch)
        return run(cell, batch, x, start if state is None else state, start)

    def put(self, batch: SequenceBatch, state: Tree, table: str | None = None) -> None:
        """Store the states of rows for the next chunk; lanes of idle and padding rows keep theirs.

        Args:
            batch: The batch of ``take``.
            state: State after the batch, with r rows in dimension ``dim``; it is detached.
            table: Name of the table, as in ``take``.

        Raises:
            PlanError: If the batch does not follow the batch of the latest ``put``.
            ResumeError: If the batch is not batch 0 of its epoch, and there was no ``put``.
            ConfigError: If the batch has no lanes, or the state has a different number of rows.
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
        self._tables[name] = LaneTable(progress, batch_numbers, state, self._dim, batch.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the lanes of this rank in all tables: ints and tensors on the CPU.

        With this state and that of the loader, a plain training loop can resume exactly. On several
        ranks, each rank has its own lanes, and ``gathered`` returns the state to save.
        """
        return {"version": STATE_VERSION, "tables": self._tables_as_dicts()}

    def gathered(self, group: Any = None) -> dict[str, Any]:
        """Return the ``state_dict`` with the lanes of all ranks; a collective operation.

        Args:
            group: Process group; None: the default group. Without any process group, the result is
                the ``state_dict`` of this process.

        Raises:
            ResumeError: If ranks are at different batches.
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
        """Load saved states, of any number of ranks; each rank then uses those of its lanes.

        Args:
            state: Result of ``state_dict`` or ``gathered``.

        Raises:
            ResumeError: If the state is damaged, or has another version or ``dim``.
        """
        if not isinstance(state, Mapping) or "version" not in state:
            raise ResumeError(
                must_be(
                    "lanes: the saved states",
                    "the result of `state_dict` or `gathered`",
                    f"{state!r:.60}",
                    "Load another checkpoint",
                )
            )
        version = state["version"]
        if type(version) is not int or version != STATE_VERSION:
            raise ResumeError(
                must_be(
                    "lanes: the version of the saved states",
                    f"{STATE_VERSION}",
                    f"{version!r:.60}",
                    "Resume with the release of seqdata that saved them",
                )
            )
        saved = state.get("tables")
        if not isinstance(saved, Mapping):
            raise ResumeError(
                must_be(
                    "lanes: `tables` of the saved states",
                    "tables by name",
                    f"{saved!r:.60}",
                    "Load another checkpoint",
                )
            )
        tables = {
            name: LaneTable.from_dict(saved_table, self._dim, name)
            for name, saved_table in saved.items()
        }
        self._tables, self._previous = tables, {}

    def replace_states(self, table: str, change: Callable[[Tree], Tree]) -> None:
        """Replace the states of a table, but not the index of its batch.

        This merges the states of layers that run on different processes.

        Args:
            table: Name of the table; a table that does not exist is ignored.
            change: Function of the states of all lanes that returns states of the same shapes.

        Raises:
            ConfigError: If the number of lanes changes.
        """
        current = self._tables.get(table)
        if current is not None:
            state = detach_state(change(current.state), len(current.progress.lanes), self._dim)
            self._tables[table] = replace(current, state=state)

    def tables_of(self, loader: str, epoch: int) -> list[str]:
        """Return the names of the table of a loader and of its other tables in an epoch.

        Args:
            loader: Name of the loader.
            epoch: Index of the epoch.
        """
        others = [
            name
            for name, table in self._tables.items()
            if name != loader and (table.loader, table.progress.epoch) == (loader, epoch)
        ]
        return [loader, *sorted(others)]

    def saved(self, table: str, epoch: int, number: int) -> dict[str, Any] | None:
        """Return a table of this rank before a batch; empty if not in use, None if unknown.

        The table before the latest batch is also known, because a resumed run trains a batch again
        if its step failed.

        Args:
            table: Name of the table.
            epoch: Epoch of the batch.
            number: Index of the batch, from 1.
        """
        for lane_table in (self._tables.get(table), self._previous.get(table)):
            if lane_table is not None and (
                lane_table.progress.epoch,
                lane_table.progress.number,
            ) == (epoch, number - 1):
                return lane_table.as_dict()
        return None if table in self._tables else {}

    def joined(self, saved: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the ``saved`` tables of all ranks as one table.

        Raises:
            ResumeError: If ranks are at different batches.
        """
        return merge_tables([saved_table for saved_table in saved if saved_table], self._dim)

    def restore(
        self, table: str, saved: Mapping[str, Any], epoch: int, number: int, *, loader: str
    ) -> None:
        """Load a table that was saved before a batch.

        Args:
            table: Name of the table.
            saved: The ``saved`` tables of all ranks, merged by ``joined``.
            epoch: Epoch of the batch.
            number: Index of the batch, from 1.
            loader: Name of the loader that makes the batch.

        Raises:
            ResumeError: If it is damaged, or belongs to another batch.
        """
        restored = LaneTable.from_dict(saved, self._dim, table)
        progress = restored.progress
        if (progress.epoch, progress.number) != (epoch, number - 1):
            raise ResumeError(
                must_be(
                    f"lanes: the saved table {table!r}",
                    f"that of batch {number - 1} of epoch {epoch}",
                    f"of batch {progress.number} of epoch {progress.epoch}",
                    "Resume from a checkpoint as a Trainer saved it",
                )
            )
        self._tables[table] = replace(restored, loader=loader)
        self._previous.pop(table, None)

    def forgive(self, loader: str, epoch: int, number: int) -> None:
        """Accept a batch of a loader without states; its sequences start with the initial state.

        Args:
            loader: Name of the loader.
            epoch: Epoch of the batch.
            number: Index of the batch.
        """
        self._tables = {
            name: table for name, table in self._tables.items() if table.loader != loader
        }
        self._lost_batches[loader] = epoch, number

    def _tables_as_dicts(self) -> dict[str, Any]:
        return {name: table.as_dict() for name, table in self._tables.items()}

    def _find_table(
        self, name: str, batch: SequenceBatch, lanes: tuple[int, ...]
    ) -> LaneTable | None:
        """Return the table from which a batch continues; None if there is none."""
        current = self._tables.get(name)
        if batch.number == 0 or (current is None and self._is_forgiven(batch)):
            return None
        check_continues(None if current is None else current.progress, batch, lanes, name)
        return current

    def _is_forgiven(self, batch: SequenceBatch) -> bool:
        return self._lost_batches.get(batch.loader) == (batch.epoch, batch.number)

    def _initial_rows(self, batch: SequenceBatch) -> Tree | None:
        """Return the initial state, repeated for each row; gradients flow into it."""
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
        """Return the states of rows, or the initial state if a sequence begins or has no state."""
        resets = batch.on_cpu("reset")
        mask = resets if batch.reset is None else batch.reset
        if min(batch_numbers) == NO_BATCH:
            numbers = torch.tensor(batch_numbers, dtype=torch.int64, device="cpu")
            lost = (numbers == NO_BATCH) & (batch.lengths > 0) & ~resets
            if bool(lost.any()):
                resets = resets | lost
                mask = to_device(resets, batch.weight.device)
        if start is not None:  # used even if no row begins, so that its gradient is 0 on every rank
            return where_rows(mask, start, state, self._dim)
        if not bool(resets.any()):
            return state
        return where_rows(mask, map_leaves(torch.zeros_like, state), state, self._dim)

    def _merge_states(
        self, batch: SequenceBatch, current: LaneTable | None, state: Tree, active: Tensor
    ) -> tuple[Tree, tuple[int, ...]]:
        """Return the new states of active rows and the old ones of others, with their batches."""
        start = self._initial_rows(batch)
        kept_states = map_leaves(torch.zeros_like, state) if start is None else start
        batch_numbers: tuple[int, ...] = (NO_BATCH,) * len(batch)
        device = batch.weight.device
        if current is not None:
            table_states, batch_numbers = current.select_rows(_lanes_of(batch), device)
            row_states = self._row_states(batch, table_states, batch_numbers, start)
            lost = (
                starts_within(batch) & ~active
            )  # masked, and its lane continues in another sequence
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
