"""What a ``predict_step`` gave, as arrays of real rows and timesteps.

Place in the flow: between the model's output and a rank's spill. Reads: an output and its batch.
Makes: arrays without filler or padding, and what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqdata.batch.axes import unknown_name
from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError
from seqdata.storage.fields import NUMBERS

Per = Literal["sequence", "timestep", "span"]
RESERVED = ("id", "position", "spans")
"""Fields that are written beside the predictions."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted under one name.

    Attributes:
        dtype: NumPy name of one element.
        shape: Of one row, or of one timestep.
        per: What there is one of them for.
    """

    dtype: str
    shape: tuple[int, ...]
    per: Per

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape} per {self.per}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which outputs are written, and what they are one of.

    Args:
        names: Of the entries of a dict, or the one of a tensor; None: all, ``prediction``.
        per: For all names, or by name; None: inferred.

    Raises:
        ConfigError: If a value cannot be meant.
    """

    names: tuple[str, ...] | None
    per: Per | Mapping[str, Per] | None

    def __post_init__(self) -> None:
        given = list(self.per.values()) if isinstance(self.per, Mapping) else [self.per]
        for one in given:
            if one is not None and one not in get_args(Per):
                raise ConfigError(
                    f"PredictionWriter: `per` is {one!r}, must be 'sequence', 'timestep', 'span' "
                    "or None"
                )
        for name in self.names or ():
            _check_name(name)

    @property
    def spans(self) -> bool:
        """Whether a row is written for each span."""
        return self.per == "span" or (isinstance(self.per, Mapping) and "span" in self.per.values())

    def per_of(self, name: str) -> Per | None:
        """Give what was said of one name."""
        return self.per.get(name) if isinstance(self.per, Mapping) else self.per

    def chosen(self, outputs: Any) -> dict[str, Any]:
        """Give name -> output.

        Raises:
            ConfigError: If they are not there.
        """
        if not isinstance(outputs, Mapping):
            names = self.names or ("prediction",)
            if len(names) > 1:
                raise ConfigError(
                    f"PredictionWriter: predict_step gave a {type(outputs).__name__}, must be a "
                    f"dict for the fields {', '.join(names)}; return one, or pass one `field`"
                )
            return {names[0]: outputs}
        for name in self.names or ():
            if name not in outputs:
                raise ConfigError(f"PredictionWriter: {unknown_name(name, outputs)}")
        names = self.names or tuple(outputs)
        for name in names:
            _check_name(name)
        for name in self.per if isinstance(self.per, Mapping) else ():
            if name not in names:
                raise ConfigError(f"PredictionWriter: `per`: {unknown_name(name, names)}")
        return {name: outputs[name] for name in names}


class Rows(NamedTuple):
    """The real rows of one batch.

    Attributes:
        places: int64 (rows, 3): number in the predicted store, start, stop in timesteps.
        fields: Name -> what it is.
        values: Name -> (rows, *shape), or (timesteps of all rows, *shape).
        guessed: Names that are taken for one per timestep by their shape alone.
    """

    places: NDArray[np.int64]
    fields: dict[str, Predicted]
    values: dict[str, NDArray[Any]]
    guessed: tuple[str, ...]


def rows_of(
    outputs: Any, batch: Any, wanted: Wanted, known: Mapping[str, Predicted], *, last: bool = False
) -> Rows | None:
    """Give the real rows of a batch; None where there are none.

    Without ``per`` an output is taken for one per timestep where its second dimension is the
    batch's padded width; later batches of another width show whether that holds.

    Args:
        outputs: What ``predict_step`` gave.
        batch: What it was given.
        wanted: What is written.
        known: Name -> what it was in an earlier batch.
        last: Whether of a truncated sequence the last timesteps are planned.

    Raises:
        ConfigError: If the batch or the output is not what can be written.
    """
    batch = _checked(batch)
    keep = (batch.weight > 0).cpu()
    if not bool(keep.any()):
        return None
    begins = batch.start if batch.burn_in is None else batch.start + batch.burn_in.cpu()
    stops = batch.start + batch.lengths
    places = torch.stack([_positions(batch), begins, stops], dim=1)[keep]
    fields, values, guessed = dict[str, Predicted](), dict[str, NDArray[Any]](), list[str]()
    for name, output in wanted.chosen(outputs).items():
        value = _as_rows(name, output, keep)
        said = wanted.per_of(name)
        per = said or _guessed(value, batch, known.get(name), spans=wanted.spans)
        if per == "timestep":
            value = _timesteps(name, value, batch, places, keep)
            guessed.extend([] if said else [name])
        elif per == "sequence" and not last:
            _check_whole(name, places, batch)
        array = value.contiguous().numpy()
        fields[name] = Predicted(array.dtype.name, array.shape[1:], per)
        values[name] = array
    return Rows(places.numpy(), fields, values, tuple(guessed))


def check_same(known: Mapping[str, Predicted], now: Mapping[str, Predicted], where: str) -> None:
    """Refuse a prediction that is not what it was before.

    Args:
        known: Name -> what it was.
        now: Name -> what it is.
        where: ``in batch 3``.

    Raises:
        ConfigError: Naming the first that differs.
    """
    if list(known) != list(now):
        raise ConfigError(
            f"PredictionWriter: the predictions are {', '.join(now)} {where} but "
            f"{', '.join(known)} elsewhere, must be the same; name them with `fields`"
        )
    for name, one in now.items():
        if one != known[name]:
            raise ConfigError(
                f"PredictionWriter: prediction {name!r} is {one} {where} but {known[name]} "
                "elsewhere, must be the same; if that was guessed wrong, pass `per`"
            )


def ambiguous(name: str, width: int) -> ConfigError:
    """Make the error for an output that may be one per sequence or one per timestep."""
    return ConfigError(
        f"PredictionWriter: `per` is None, but the second dimension of prediction {name!r} is "
        f"{width} like the width of every batch, so that its timesteps cannot be told from its "
        "features; pass `per`='timestep' or 'sequence'"
    )


def _checked(batch: Any) -> SequenceBatch:
    if not isinstance(batch, SequenceBatch) or batch.positions is None:
        raise ConfigError(
            f"PredictionWriter: the batch is a {type(batch).__name__}, must be a SequenceBatch of "
            "the loader, which knows its sequences; leave out `as_tuple`, `as_dict` and a torch "
            "`collate_fn`"
        )
    if batch.segments is not None:
        raise ConfigError(
            "PredictionWriter: a row of the batch may hold several sequences, must hold one; "
            "predict with another `eval_batching`, such as Bucketed(32)"
        )
    return batch


def _positions(batch: SequenceBatch) -> Tensor:
    return batch.ids if batch.positions is None else batch.positions


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name or name in RESERVED:
        raise ConfigError(
            f"PredictionWriter: a prediction is named {name!r}, must be text other than "
            f"{', '.join(RESERVED)}; rename it"
        )


def _as_rows(name: str, output: Any, keep: Tensor) -> Tensor:
    """Give an output on the CPU, without filler rows, as a type that NumPy has."""
    if not isinstance(output, Tensor) or output.is_nested or not output.dim():
        what = (
            "number" if isinstance(output, Tensor) and not output.dim() else type(output).__name__
        )
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} is a {what}, must be a padded tensor with a "
            "row for each of the batch; return one, or a dict of them"
        )
    real = int(keep.sum())
    if len(output) not in (len(keep), real):
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} has shape {tuple(output.shape)}, must have "
            f"{len(keep)} rows as the batch, or {real} as batch.real(); return a row for each"
        )
    if output.is_floating_point() and output.itemsize < 4 and output.dtype != torch.float16:
        output = output.float()  # bfloat16 and smaller, which NumPy has not
    value = output.detach().cpu()
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in NUMBERS:
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} has dtype {dtype}, must be one of "
            f"{', '.join(NUMBERS)}; convert it"
        )
    if 0 in value.shape[1:]:
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} has shape {tuple(value.shape)}, must hold a "
            "number in each row; leave it out"
        )
    rows: Tensor = value if len(value) == real else value[keep]
    return rows


def _guessed(value: Tensor, batch: SequenceBatch, known: Predicted | None, *, spans: bool) -> Per:
    whole: Per = "span" if spans else "sequence"
    if known is not None and known.per == whole and known.shape == tuple(value.shape[1:]):
        return whole  # the width of this batch is what it is by chance
    return "timestep" if _looks_ragged(value, batch) else whole


def _looks_ragged(value: Tensor, batch: SequenceBatch) -> bool:
    return value.dim() > 1 and value.shape[1] == batch.padded_length


def _timesteps(
    name: str, value: Tensor, batch: SequenceBatch, places: Tensor, keep: Tensor
) -> Tensor:
    """Give the scored timesteps of real rows, (timesteps, *shape), row behind row."""
    width = batch.padded_length
    if not _looks_ragged(value, batch):
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} has shape {tuple(value.shape)}, must be "
            f"(rows, {width}, …) to be one per timestep of a batch padded to {width}; return it "
            "so, or pass `per`='sequence'"
        )
    step, start = torch.arange(width), batch.start[keep][:, None]
    scored = (step >= places[:, 1:2] - start) & (step < places[:, 2:3] - start)  # (rows, T)
    flat = value.reshape(len(value) * width, *value.shape[2:])
    return flat.index_select(0, scored.flatten().nonzero().flatten())  # faster than value[scored]


def _check_whole(name: str, places: Tensor, batch: SequenceBatch) -> None:
    later = (places[:, 1] > 0).nonzero().flatten()
    if len(later):
        number, start, stop = places[int(later[0])].tolist()
        raise ConfigError.at(
            f"PredictionWriter: prediction {name!r} has one row per sequence, but batch "
            f"{batch.number} holds timesteps {start}..{stop} of sequence {number}, must hold whole "
            "sequences; pass `per`='span' for a row of each span, or do not split them",
            sequence=number,
        )


def chosen_names(field: str | None, fields: Sequence[str] | None) -> tuple[str, ...] | None:
    """Give the names that two options mean; None: all.

    Raises:
        ConfigError: If both are given, or ``fields`` is no tuple of names.
    """
    if field is not None and fields is not None:
        raise ConfigError(
            "PredictionWriter: `field` and `fields` are both given, must be one; drop one"
        )
    if isinstance(fields, str) or (fields is not None and not fields):
        raise ConfigError(
            f"PredictionWriter: `fields` is {fields!r}, must be a tuple of names, or None for all"
        )
    if fields is not None:
        return tuple(fields)
    return None if field is None else (field,)
