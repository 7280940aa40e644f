"""What a ``predict_step`` gave, as arrays of real rows and timesteps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqdata.batch.axes import format_unknown_name
from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError
from seqdata.storage.packing import NUMBER_DTYPES

Per = Literal["sequence", "timestep", "span"]
RESERVED = ("id", "position", "spans")
"""Fields that are written beside the predictions."""


@dataclass(frozen=True, slots=True)
class PredictionField:
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
class PredictionSpec:
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
        given_pers = list(self.per.values()) if isinstance(self.per, Mapping) else [self.per]
        for per in given_pers:
            if per is not None and per not in get_args(Per):
                raise ConfigError(
                    f"PredictionWriter: `per` is {per!r}, must be 'sequence', 'timestep', 'span' "
                    "or None"
                )
        for name in self.names or ():
            _check_name(name)

    @property
    def has_spans(self) -> bool:
        """Whether a row is written for each span."""
        return self.per == "span" or (isinstance(self.per, Mapping) and "span" in self.per.values())

    def get_per(self, name: str) -> Per | None:
        """Return what was said of one name."""
        return self.per.get(name) if isinstance(self.per, Mapping) else self.per

    def choose_outputs(self, outputs: Any) -> dict[str, Any]:
        """Return name -> output.

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
                raise ConfigError(f"PredictionWriter: {format_unknown_name(name, outputs)}")
        names = self.names or tuple(outputs)
        for name in names:
            _check_name(name)
        for name in self.per if isinstance(self.per, Mapping) else ():
            if name not in names:
                raise ConfigError(f"PredictionWriter: `per`: {format_unknown_name(name, names)}")
        return {name: outputs[name] for name in names}


class PredictedRows(NamedTuple):
    """The real rows of one batch.

    Attributes:
        spans: int64 (rows, 3): number in the predicted store, start, stop in timesteps.
        fields: Name -> what it is.
        values: Name -> (rows, *shape), or (timesteps of all rows, *shape).
        guessed_names: Names that are taken for one per timestep by their shape alone.
    """

    spans: NDArray[np.int64]
    fields: dict[str, PredictionField]
    values: dict[str, NDArray[Any]]
    guessed_names: tuple[str, ...]


def extract_rows(
    outputs: Any,
    batch: Any,
    spec: PredictionSpec,
    earlier: Mapping[str, PredictionField],
    *,
    is_last_kept: bool = False,
) -> PredictedRows | None:
    """Return the real rows of a batch; None where there are none.

    Without ``per`` an output is taken for one per timestep where its second dimension is the
    batch's padded width; later batches of another width show whether that holds.

    Args:
        outputs: What ``predict_step`` gave.
        batch: What it was given.
        spec: What is written.
        earlier: Name -> what it was in an earlier batch.
        is_last_kept: Whether of a truncated sequence the last timesteps are planned.

    Raises:
        ConfigError: If the batch or the output is not what can be written.
    """
    batch = _check_batch(batch)
    is_real = (batch.weight > 0).cpu()
    if not bool(is_real.any()):
        return None
    begins = batch.start if batch.burn_in is None else batch.start + batch.burn_in.cpu()
    stops = batch.start + batch.lengths
    spans = torch.stack([_get_positions(batch), begins, stops], dim=1)[is_real]
    fields, values, guessed_names = (
        dict[str, PredictionField](),
        dict[str, NDArray[Any]](),
        list[str](),
    )
    for name, output in spec.choose_outputs(outputs).items():
        value = _to_rows(name, output, is_real)
        given_per = spec.get_per(name)
        per = given_per or _guess_per(value, batch, earlier.get(name), has_spans=spec.has_spans)
        if per == "timestep":
            value = _select_timesteps(name, value, batch, spans, is_real)
            guessed_names.extend([] if given_per else [name])
        elif per == "sequence" and not is_last_kept:
            _check_unsplit(name, spans, batch)
        array = value.contiguous().numpy()
        fields[name] = PredictionField(array.dtype.name, array.shape[1:], per)
        values[name] = array
    return PredictedRows(spans.numpy(), fields, values, tuple(guessed_names))


def check_same_fields(
    earlier: Mapping[str, PredictionField], current: Mapping[str, PredictionField], location: str
) -> None:
    """Refuse a prediction that is not what it was before.

    Args:
        earlier: Name -> what it was.
        current: Name -> what it is.
        location: ``in batch 3``.

    Raises:
        ConfigError: Naming the first that differs.
    """
    if list(earlier) != list(current):
        raise ConfigError(
            f"PredictionWriter: the predictions are {', '.join(current)} {location} but "
            f"{', '.join(earlier)} elsewhere, must be the same; name them with `fields`"
        )
    for name, field in current.items():
        if field != earlier[name]:
            raise ConfigError(
                f"PredictionWriter: prediction {name!r} is {field} {location} but {earlier[name]} "
                "elsewhere, must be the same; if that was guessed wrong, pass `per`"
            )


def make_ambiguity_error(name: str, width: int) -> ConfigError:
    """Make the error for an output that may be one per sequence or one per timestep."""
    return ConfigError(
        f"PredictionWriter: `per` is None, but the second dimension of prediction {name!r} is "
        f"{width} like the width of every batch, so that its timesteps cannot be told from its "
        "features; pass `per`='timestep' or 'sequence'"
    )


def _check_batch(batch: Any) -> SequenceBatch:
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


def _get_positions(batch: SequenceBatch) -> Tensor:
    return batch.ids if batch.positions is None else batch.positions


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name or name in RESERVED:
        raise ConfigError(
            f"PredictionWriter: a prediction is named {name!r}, must be text other than "
            f"{', '.join(RESERVED)}; rename it"
        )


def _to_rows(name: str, output: Any, is_real: Tensor) -> Tensor:
    """Return an output on the CPU, without filler rows, as a type that NumPy has."""
    if not isinstance(output, Tensor) or output.is_nested or not output.dim():
        kind = (
            "number" if isinstance(output, Tensor) and not output.dim() else type(output).__name__
        )
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} is a {kind}, must be a padded tensor with a "
            "row for each of the batch; return one, or a dict of them"
        )
    num_real = int(is_real.sum())
    if len(output) not in (len(is_real), num_real):
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} has shape {tuple(output.shape)}, must have "
            f"{len(is_real)} rows as the batch, or {num_real} as batch.real(); return a row for "
            "each"
        )
    if output.is_floating_point() and output.itemsize < 4 and output.dtype != torch.float16:
        output = output.float()  # bfloat16 and smaller, which NumPy has not
    value = output.detach().cpu()
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in NUMBER_DTYPES:
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} has dtype {dtype}, must be one of "
            f"{', '.join(NUMBER_DTYPES)}; convert it"
        )
    if 0 in value.shape[1:]:
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} has shape {tuple(value.shape)}, must hold a "
            "number in each row; leave it out"
        )
    rows: Tensor = value if len(value) == num_real else value[is_real]
    return rows


def _guess_per(
    value: Tensor, batch: SequenceBatch, earlier: PredictionField | None, *, has_spans: bool
) -> Per:
    per_row: Per = "span" if has_spans else "sequence"
    if earlier is not None and earlier.per == per_row and earlier.shape == tuple(value.shape[1:]):
        return per_row  # the width of this batch is what it is by chance
    return "timestep" if _looks_ragged(value, batch) else per_row


def _looks_ragged(value: Tensor, batch: SequenceBatch) -> bool:
    return value.dim() > 1 and value.shape[1] == batch.padded_length


def _select_timesteps(
    name: str, value: Tensor, batch: SequenceBatch, spans: Tensor, is_real: Tensor
) -> Tensor:
    """Return the scored timesteps of real rows, (timesteps, *shape), row behind row."""
    width = batch.padded_length
    if not _looks_ragged(value, batch):
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} has shape {tuple(value.shape)}, must be "
            f"(rows, {width}, …) to be one per timestep of a batch padded to {width}; return it "
            "so, or pass `per`='sequence'"
        )
    step, start = torch.arange(width), batch.start[is_real][:, None]
    is_scored = (step >= spans[:, 1:2] - start) & (step < spans[:, 2:3] - start)  # (rows, T)
    flat = value.reshape(len(value) * width, *value.shape[2:])
    return flat.index_select(
        0, is_scored.flatten().nonzero().flatten()
    )  # faster than value[scored]


def _check_unsplit(name: str, spans: Tensor, batch: SequenceBatch) -> None:
    continued = (spans[:, 1] > 0).nonzero().flatten()
    if len(continued):
        number, start, stop = spans[int(continued[0])].tolist()
        raise ConfigError.at(
            f"PredictionWriter: prediction {name!r} has one row per sequence, but batch "
            f"{batch.number} holds timesteps {start}..{stop} of sequence {number}, must hold whole "
            "sequences; pass `per`='span' for a row of each span, or do not split them",
            sequence=number,
        )


def choose_names(field: str | None, fields: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names that two options mean; None: all.

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
