"""Runs the rows of a batch of lanes, each up to its own end, and no row that is idle.

Where all rows are full this is one call, and bitwise what the module gives for the whole sequence.
Else rows are cut into pieces (a row's timesteps, or each sequence in it) that are packed, or run
length by length where the callable takes no packed ones. Place in the flow: ``LaneStates.run``.
Reads: inputs and states. Makes: outputs (r, T, ...), and the state of each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import edges
from seqdata.errors import ConfigError
from seqdata.recurrent.cells import Cell
from seqdata.recurrent.trees import Tree, chosen, leaves, mapped, placed, where, zeros_like


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """Parts of rows that are run each by itself, in the order of rows and timesteps.

    Attributes:
        rows: int64 (p,), the row of each.
        begins: int64 (p,), its first timestep in the row.
        lengths: int64 (p,), at least 1.
        goes_on: bool (p,), whether it goes on with its row's state; else it begins anew.
    """

    rows: Tensor
    begins: Tensor
    lengths: Tensor
    goes_on: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, keep: Tensor) -> _Pieces:
        """Give those that ``keep`` names, a mask or numbers."""
        return _Pieces(self.rows[keep], self.begins[keep], self.lengths[keep], self.goes_on[keep])

    def lasts(self) -> Tensor:
        """Give the number of each row's last piece, int64."""
        ends = torch.ones(len(self.rows), dtype=torch.bool)
        ends[:-1] = self.rows[1:] != self.rows[:-1]
        return ends.nonzero().flatten()


def run(
    cell: Cell, batch: SequenceBatch, x: Tensor, state: Tree | None, fresh: Tree | None
) -> tuple[Tensor, Tree]:
    """Run the rows of a batch.

    Args:
        cell: What is run.
        batch: Whose rows.
        x: (r, T, *shape).
        state: Of each row at its first timestep; None: zeros.
        fresh: A state with which sequences begin, of r rows; None: zeros.

    Returns:
        Outputs (r, T, *shape), 0 in padding and idle rows; and the state of each row
        ``batch.overlap`` timesteps before its end, of idle rows the one that was given.

    Raises:
        ConfigError: If ``x`` has other rows or timesteps than the batch.
    """
    lengths = batch.lengths
    active = (batch.on_cpu("weight") > 0) & (lengths > 0)
    width = batch.padded_length or max(1, int(lengths.max()))
    if x.ndim < 2 or x.shape[:2] != (len(batch), width):
        raise ConfigError(
            f"lanes: `x` is {tuple(x.shape)}, must have the {len(batch)} rows and {width} "
            "timesteps of the batch first; keep its time as it is"
        )
    if not bool(active.any()):
        return _nothing(cell, x, state)
    pieces = _pieces_of(batch, active)
    if batch.overlap:
        return _overlapping(cell, x, pieces, (state, fresh), batch.overlap)
    return _wave(cell, x, pieces, state, fresh)


def _pieces_of(batch: SequenceBatch, active: Tensor) -> _Pieces:
    spans = batch.segments
    if spans is None or batch.carry:
        rows = active.nonzero().flatten()
        lengths = batch.lengths[rows]
        zeros = torch.zeros_like(rows)
        return _Pieces(rows, zeros, lengths, torch.ones_like(rows, dtype=torch.bool))
    spans = spans[active[spans[:, 0]] & (spans[:, 3] > spans[:, 2])]
    rows, lengths = spans[:, 0], spans[:, 3] - spans[:, 2]
    firsts = torch.ones_like(rows, dtype=torch.bool)
    firsts[1:] = rows[1:] != rows[:-1]
    begins = edges(lengths)[:-1]
    of_row = begins[firsts][firsts.cumsum(0) - 1]
    return _Pieces(rows, begins - of_row, lengths, firsts)


def _wave(
    cell: Cell, x: Tensor, pieces: _Pieces, state: Tree | None, fresh: Tree | None
) -> tuple[Tensor, Tree]:
    """Run pieces; give outputs (r, T, *shape) and states of all rows at the end of their last."""
    rows, width = x.shape[:2]
    if len(pieces) == rows and _is_whole(pieces, width):
        return cell.dense(x, state)
    begun = _begun(pieces, state, fresh, cell.dim)
    values, at, ends = _ragged(cell, x, pieces, begun)
    at = placed(at, values.device)
    flat = values.new_zeros((rows * width, *values.shape[1:])).index_copy(0, at, values)
    out = flat.view(rows, width, *values.shape[1:])
    lasts = pieces.lasts()
    if len(lasts) < len(pieces):
        ends = chosen(ends, lasts, cell.dim)
    return out, _returned(ends, pieces.rows[lasts], rows, state, cell.dim)


def _overlapping(
    cell: Cell,
    x: Tensor,
    pieces: _Pieces,
    states: tuple[Tree | None, Tree | None],
    overlap: int,
) -> tuple[Tensor, Tree]:
    """Run each row up to where its state is taken, then on from there: one graph over both."""
    state, fresh = states
    rows, width = x.shape[:2]
    if len(pieces) == rows and _is_whole(pieces, width) and width > overlap:
        head, state = cell.dense(x[:, : width - overlap], state)
        tail, _ = cell.dense(x[:, width - overlap :], state)
        return torch.cat([head, tail], dim=1), state
    ahead = (pieces.lengths - overlap).clamp(min=0)
    heads = _Pieces(pieces.rows, pieces.begins, ahead, pieces.goes_on).of(ahead > 0)
    tails = _Pieces(pieces.rows, ahead, pieces.lengths - ahead, pieces.goes_on)
    if not len(heads):
        out, end = _wave(cell, x, tails, state, fresh)
        return out, zeros_like(end, rows, cell.dim) if state is None else state
    out, state = _wave(cell, x, heads, state, fresh)
    more, _ = _wave(cell, x, tails, state, fresh)
    return out + more, state


def _is_whole(pieces: _Pieces, width: int) -> bool:
    """Tell whether each of as many pieces as rows is a whole row that goes on."""
    return bool((pieces.lengths == width).all()) and bool(pieces.goes_on.all())


def _ragged(
    cell: Cell, x: Tensor, pieces: _Pieces, state: Tree | None
) -> tuple[Tensor, Tensor, Tree]:
    """Run pieces; give their outputs, flat, the place of each, and the ends in pieces' order."""
    width = x.shape[1]
    flat = x.reshape(x.shape[0] * width, *x.shape[2:])
    origin = pieces.rows * width + pieces.begins
    longest = int(pieces.lengths.max())
    if int(pieces.lengths.min()) == longest:
        return _equal(cell, flat, origin, longest, state)
    if cell.packs:
        order = torch.argsort(pieces.lengths, descending=True, stable=True)
        falling = pieces.lengths[order]
        there = torch.arange(longest)[:, None] < falling  # (T, p)
        at = (origin[order] + torch.arange(longest)[:, None])[there]
        begun = None if state is None else chosen(state, order, cell.dim)
        values, ends = cell.packed(flat.index_select(0, placed(at, x.device)), there.sum(1), begun)
        return values, at, chosen(ends, torch.argsort(order), cell.dim)
    return _by_length(cell, flat, pieces, origin, state)


def _equal(
    cell: Cell, flat: Tensor, origin: Tensor, length: int, state: Tree | None
) -> tuple[Tensor, Tensor, Tree]:
    at = (origin[:, None] + torch.arange(length)).flatten()
    taken = flat.index_select(0, placed(at, flat.device))
    out, ends = cell.dense(taken.view(len(origin), length, *flat.shape[1:]), state)
    return out.flatten(0, 1), at, ends


def _by_length(
    cell: Cell, flat: Tensor, pieces: _Pieces, origin: Tensor, state: Tree | None
) -> tuple[Tensor, Tensor, Tree]:
    """Run those of each length together: one call per length."""
    values, places, ends, order = [], [], [], []
    for length in sorted(set(pieces.lengths.tolist())):
        those = (pieces.lengths == length).nonzero().flatten()
        begun = None if state is None else chosen(state, those, cell.dim)
        out, at, end = _equal(cell, flat, origin[those], length, begun)
        values.append(out)
        places.append(at)
        ends.append(end)
        order.append(those)
    joined = mapped(lambda *parts: torch.cat(parts, dim=cell.dim), ends[0], *ends[1:])
    back = torch.argsort(torch.cat(order))
    return torch.cat(values), torch.cat(places), chosen(joined, back, cell.dim)


def _begun(pieces: _Pieces, state: Tree | None, fresh: Tree | None, dim: int) -> Tree | None:
    """Give the state that each piece begins with."""
    if state is None and fresh is None:
        return None
    if state is None:
        return chosen(fresh, pieces.rows, dim)
    carried = chosen(state, pieces.rows, dim)
    if bool(pieces.goes_on.all()):
        return carried
    begins = zeros_like(carried, len(pieces), dim)
    if fresh is not None:
        begins = chosen(fresh, pieces.rows, dim)
    device = next(leaves(carried)).device
    return where(placed(pieces.goes_on, device), carried, begins, dim)


def _returned(ends: Tree, active: Tensor, rows: int, state: Tree | None, dim: int) -> Tree:
    """Give the states of all rows: of those that ran their ends, else what was given."""
    if len(active) == rows:
        return ends
    given = zeros_like(ends, rows, dim) if state is None else state

    def put(old: Tensor, new: Tensor) -> Tensor:
        return old.to(new.dtype).index_copy(dim, placed(active, new.device), new)

    return mapped(put, given, ends)


def _nothing(cell: Cell, x: Tensor, state: Tree | None) -> tuple[Tensor, Tree]:
    """Run one timestep that counts nothing: other ranks wait for this one's gradients."""
    rows, width = x.shape[:2]
    one = x[:1, :1]
    if one.is_floating_point():
        one = torch.where(torch.zeros_like(one, dtype=torch.bool), one, torch.zeros_like(one))
    first = None if state is None else chosen(state, torch.zeros(1, dtype=torch.int64), cell.dim)
    made, end = cell.dense(one, first)
    nowhere = torch.zeros((rows, width, *(1,) * (made.ndim - 2)), dtype=torch.bool)
    out = torch.where(placed(nowhere, made.device), made, torch.zeros_like(made))
    return out, zeros_like(end, rows, cell.dim) if state is None else state
