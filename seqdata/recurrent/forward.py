"""Runs a recurrent module over the rows of a batch of lanes, each up to its end, without idle rows.

Chunk by chunk the result is that of the module for the whole sequence, up to rounding (1e-6 in
float32, 1e-14 in float64): kernels add in an order that depends on the processor and on how many
rows they are given. If all rows are full this is one call. Otherwise rows are cut into pieces (a
row's timesteps, or each sequence in it) that are packed, or run length by length if the callable
takes no packed sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import offsets_from_lengths, select_flat
from seqdata.errors import ConfigError
from seqdata.recurrent.cells import Cell
from seqdata.recurrent.trees import (
    Tree,
    iter_leaves,
    map_leaves,
    select_rows,
    to_device,
    where_rows,
    zeros_like,
)


@dataclass(frozen=True, slots=True, eq=False)
class _RowPieces:
    """Pieces of rows that are run separately, in the order of rows and timesteps.

    Attributes:
        rows: int64 (p,), row of each piece.
        starts: int64 (p,), first timestep of each piece in its row.
        lengths: int64 (p,), number of timesteps of each piece, at least 1.
        continues: bool (p,), whether each piece continues from its row's state, not from the
            initial one.
    """

    rows: Tensor
    starts: Tensor
    lengths: Tensor
    continues: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, keep: Tensor) -> _RowPieces:
        """Return the selected pieces, by a mask or indices."""
        return _RowPieces(
            self.rows[keep], self.starts[keep], self.lengths[keep], self.continues[keep]
        )

    def last_of_rows(self) -> Tensor:
        """Return the index of each row's last piece, int64."""
        is_last = torch.ones_like(self.rows, dtype=torch.bool)
        is_last[:-1] = self.rows[1:] != self.rows[:-1]
        return is_last.nonzero().flatten()


def run(
    cell: Cell, batch: SequenceBatch, x: Tensor, state: Tree | None, fresh: Tree | None
) -> tuple[Tensor, Tree]:
    """Run the rows of a batch.

    Args:
        cell: The cell.
        batch: The batch.
        x: Inputs (r, T, *shape).
        state: State of each row at its first timestep; None: zeros.
        fresh: Initial state of sequences, of r rows; None: zeros.

    Returns:
        Outputs (r, T, *shape), 0 in padding and idle rows; and the state of each row
        ``batch.overlap`` timesteps before its end, unchanged for idle rows.

    Raises:
        ConfigError: If ``x`` has other rows or timesteps than the batch.
    """
    lengths = batch.lengths
    active = (batch.on_cpu("weight") > 0) & (lengths > 0)
    width = batch.padded_length or max(1, int(lengths.max()))
    if x.ndim < 2 or x.shape[:2] != (len(batch), width):
        raise ConfigError(
            f"lanes: the first dimensions of `x` must be the {len(batch)} rows and {width} "
            f"timesteps of the batch, but its shape is {tuple(x.shape)}. Keep its time dimension."
        )
    if not bool(active.any()):
        return _run_idle(cell, x, state)
    pieces = _split_rows(batch, active)
    if batch.overlap:
        return _run_overlapping(cell, x, pieces, (state, fresh), batch.overlap)
    return _run_pieces(cell, x, pieces, state, fresh)


def _split_rows(batch: SequenceBatch, active: Tensor) -> _RowPieces:
    spans = batch.segments
    if spans is None or batch.carry:
        rows = active.nonzero().flatten()
        lengths = batch.lengths[rows]
        zeros = torch.zeros_like(rows)
        return _RowPieces(rows, zeros, lengths, torch.ones_like(rows, dtype=torch.bool))
    spans = spans[active[spans[:, 0]] & (spans[:, 3] > spans[:, 2])]
    rows, lengths = spans[:, 0], spans[:, 3] - spans[:, 2]
    is_first = torch.ones_like(rows, dtype=torch.bool)
    is_first[1:] = rows[1:] != rows[:-1]
    offsets = offsets_from_lengths(lengths)[:-1]
    row_starts = offsets[is_first][is_first.cumsum(0) - 1]
    return _RowPieces(rows, offsets - row_starts, lengths, is_first)


def _run_pieces(
    cell: Cell, x: Tensor, pieces: _RowPieces, state: Tree | None, fresh: Tree | None
) -> tuple[Tensor, Tree]:
    """Run pieces; return outputs (r, T, *shape) and the final states of all rows."""
    rows, width = x.shape[:2]
    if len(pieces) == rows and _are_full_rows(pieces, width):
        return cell.run_dense(x, state)
    initial = _initial_states(pieces, state, fresh, cell.dim)
    values, positions, ends = _run_ragged(cell, x, pieces, initial)
    positions = to_device(positions, values.device)
    flat = values.new_zeros((rows * width, *values.shape[1:])).index_copy(0, positions, values)
    out = flat.view(rows, width, *values.shape[1:])
    last_pieces = pieces.last_of_rows()
    if len(last_pieces) < len(pieces):
        ends = select_rows(ends, last_pieces, cell.dim)
    return out, _final_states(ends, pieces.rows[last_pieces], rows, state, cell.dim)


def _run_overlapping(
    cell: Cell,
    x: Tensor,
    pieces: _RowPieces,
    states: tuple[Tree | None, Tree | None],
    overlap: int,
) -> tuple[Tensor, Tree]:
    """Run each row up to the position of its state, then continue: one graph over both."""
    state, fresh = states
    rows, width = x.shape[:2]
    if len(pieces) == rows and _are_full_rows(pieces, width) and width > overlap:
        head, state = cell.run_dense(x[:, : width - overlap], state)
        tail, _ = cell.run_dense(x[:, width - overlap :], state)
        return torch.cat([head, tail], dim=1), state
    head_lengths = (pieces.lengths - overlap).clamp(min=0)
    heads = _RowPieces(pieces.rows, pieces.starts, head_lengths, pieces.continues).select(
        head_lengths > 0
    )
    tails = _RowPieces(pieces.rows, head_lengths, pieces.lengths - head_lengths, pieces.continues)
    if not len(heads):
        out, end = _run_pieces(cell, x, tails, state, fresh)
        return out, zeros_like(end, rows, cell.dim) if state is None else state
    out, state = _run_pieces(cell, x, heads, state, fresh)
    tail_out, _ = _run_pieces(cell, x, tails, state, fresh)
    return out + tail_out, state


def _are_full_rows(pieces: _RowPieces, width: int) -> bool:
    """Return whether every piece is a whole row that continues, and there is one for each row."""
    return bool((pieces.lengths == width).all()) and bool(pieces.continues.all())


def _run_ragged(
    cell: Cell, x: Tensor, pieces: _RowPieces, state: Tree | None
) -> tuple[Tensor, Tensor, Tree]:
    """Run pieces; return their flat outputs, the position of each, and final states."""
    width = x.shape[1]
    flat = x.reshape(x.shape[0] * width, *x.shape[2:])
    origin = pieces.rows * width + pieces.starts
    longest = int(pieces.lengths.max())
    if int(pieces.lengths.min()) == longest:
        return _run_equal(cell, flat, origin, longest, state)
    if cell.takes_packed:
        order = torch.argsort(pieces.lengths, descending=True, stable=True)
        falling = pieces.lengths[order]
        timesteps = torch.arange(longest, device=falling.device)[:, None]
        is_real = timesteps < falling  # (T, p)
        positions = (origin[order] + timesteps)[is_real]
        initial = None if state is None else select_rows(state, order, cell.dim)
        values, ends = cell.run_packed(
            select_flat(flat, to_device(positions, x.device)), is_real.sum(1), initial
        )
        return values, positions, select_rows(ends, torch.argsort(order), cell.dim)
    return _run_by_length(cell, flat, pieces, origin, state)


def _run_equal(
    cell: Cell, flat: Tensor, origin: Tensor, length: int, state: Tree | None
) -> tuple[Tensor, Tensor, Tree]:
    positions = (origin[:, None] + torch.arange(length, device=origin.device)).flatten()
    inputs = select_flat(flat, to_device(positions, flat.device))
    out, ends = cell.run_dense(inputs.view(len(origin), length, *flat.shape[1:]), state)
    return out.flatten(0, 1), positions, ends


def _run_by_length(
    cell: Cell, flat: Tensor, pieces: _RowPieces, origin: Tensor, state: Tree | None
) -> tuple[Tensor, Tensor, Tree]:
    """Run the pieces of each length together: one call per length."""
    values, positions, ends, order = [], [], [], []
    for length in sorted(set(pieces.lengths.tolist())):
        selected = (pieces.lengths == length).nonzero().flatten()
        initial = None if state is None else select_rows(state, selected, cell.dim)
        out, piece_positions, end = _run_equal(cell, flat, origin[selected], length, initial)
        values.append(out)
        positions.append(piece_positions)
        ends.append(end)
        order.append(selected)
    concatenated = map_leaves(lambda *parts: torch.cat(parts, dim=cell.dim), ends[0], *ends[1:])
    inverse = torch.argsort(torch.cat(order))
    return torch.cat(values), torch.cat(positions), select_rows(concatenated, inverse, cell.dim)


def _initial_states(
    pieces: _RowPieces, state: Tree | None, fresh: Tree | None, dim: int
) -> Tree | None:
    """Return the initial state of each piece."""
    if state is None and fresh is None:
        return None
    if state is None:
        return select_rows(fresh, pieces.rows, dim)
    carried = select_rows(state, pieces.rows, dim)
    if bool(pieces.continues.all()):
        return carried
    fresh_states = zeros_like(carried, len(pieces), dim)
    if fresh is not None:
        fresh_states = select_rows(fresh, pieces.rows, dim)
    device = next(iter_leaves(carried)).device
    return where_rows(to_device(pieces.continues, device), carried, fresh_states, dim)


def _final_states(ends: Tree, active: Tensor, rows: int, state: Tree | None, dim: int) -> Tree:
    """Return the states of all rows: final states of rows that ran, else the given ones."""
    if len(active) == rows:
        return ends
    initial = zeros_like(ends, rows, dim) if state is None else state

    def put(old: Tensor, new: Tensor) -> Tensor:
        return old.to(new.dtype).index_copy(dim, to_device(active, new.device), new)

    return map_leaves(put, initial, ends)


def _run_idle(cell: Cell, x: Tensor, state: Tree | None) -> tuple[Tensor, Tree]:
    """Run one dummy timestep, so that DDP still receives gradients from this rank."""
    rows, width = x.shape[:2]
    first_step = x[:1, :1]
    if first_step.is_floating_point():
        first_step = torch.where(
            torch.zeros_like(first_step, dtype=torch.bool), first_step, torch.zeros_like(first_step)
        )
    first_row = torch.zeros(1, dtype=torch.int64, device="cpu")
    first_state = None if state is None else select_rows(state, first_row, cell.dim)
    output, end = cell.run_dense(first_step, first_state)
    no_mask = output.new_zeros((rows, width, *(1,) * (output.ndim - 2)), dtype=torch.bool)
    out = torch.where(no_mask, output, torch.zeros_like(output))
    return out, zeros_like(end, rows, cell.dim) if state is None else state
