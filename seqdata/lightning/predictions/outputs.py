"""Conversion of the output of ``predict_step`` to arrays of real rows and timesteps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqdata.batch.axes import are_names, format_unknown_name
from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import select_flat
from seqdata.errors import ConfigError, must_be
from seqdata.storage.packing import NUMBER_DTYPES

Per = Literal["sequence", "timestep", "span"]
RESERVED = ("id", "position", "spans")
"""Fields of the written store besides predictions."""


@dataclass(frozen=True, slots=True)
class PredictionField:
    """Dtype and shape of one predicted field.

    Attributes:
        dtype: Name of the dtype in NumPy.
        shape: Shape of a row, or of a timestep.
        per: Whether there is a prediction per sequence, timestep or span.
    """

    dtype: str
    shape: tuple[int, ...]
    per: Per

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape} per {self.per}"


@dataclass(frozen=True, slots=True)
class PredictionSpec:
    """Selection of outputs to write, each per sequence, timestep or span.

    Args:
        names: Names of the entries of a dict, or of a tensor; None: all, or ``prediction``.
        per: ``sequence``, ``timestep`` or ``span``, for all names or by name; None: inferred.

    Raises:
        ConfigError: If a value is invalid.
    """

    names: tuple[str, ...] | None
    per: Per | Mapping[str, Per] | None

    def __post_init__(self) -> None:
        given_pers = list(self.per.values()) if isinstance(self.per, Mapping) else [self.per]
        for per in given_pers:
            if per is not None and per not in get_args(Per):
                raise ConfigError(
                    must_be(
                        "PredictionWriter: `per`",
                        "'sequence', 'timestep', 'span' or None",
                        repr(per),
                    )
                )
        for name in self.names or ():
            _check_name(name)

    @property
    def has_spans(self) -> bool:
        """Whether a row is written for each span."""
        return self.per == "span" or (isinstance(self.per, Mapping) and "span" in self.per.values())

    def get_per(self, name: str) -> Per | None:
        """Return the value of ``per`` for a name."""
        return self.per.get(name) if isinstance(self.per, Mapping) else self.per

    def choose_outputs(self, outputs: Any) -> dict[str, Any]:
        """Return the selected outputs by name.

        Raises:
            ConfigError: If one does not exist.
        """
        if not isinstance(outputs, Mapping):
            names = self.names or ("prediction",)
            if len(names) > 1:
                raise ConfigError(
                    "PredictionWriter: predict_step must return a dict for the fields "
                    f"{', '.join(names)}, but returned a {type(outputs).__name__}. Return one, "
                    "or pass one `field`."
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
    """Real rows of one batch.

    Attributes:
        spans: int64 (rows, 3): index in the predicted store, start, stop in timesteps.
        fields: Name -> its dtype and shape.
        values: Name -> (rows, *shape), or (timesteps of all rows, *shape).
        guessed_names: Names whose ``timestep`` was inferred from the shape only.
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
    """Return the real rows of a batch; None if there are none.

    Without ``per`` an output is assumed to be per timestep if its second dimension is the batch's
    padded width; later batches of another width confirm it.

    Args:
        outputs: Output of ``predict_step``.
        batch: The batch.
        spec: Outputs to write.
        earlier: Name -> dtype and shape in an earlier batch.
        is_last_kept: Whether the last timesteps of a truncated sequence are planned.

    Raises:
        ConfigError: If the batch or the output cannot be written.
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
    """Raise if predictions differ from earlier ones in names, dtypes or shapes.

    Args:
        earlier: Name -> earlier dtype and shape.
        current: Name -> dtype and shape.
        location: Location for messages, such as ``in batch 3``.

    Raises:
        ConfigError: If a prediction differs; the message names the first.
    """
    if list(earlier) != list(current):
        raise ConfigError(
            "PredictionWriter: predictions must have the same names everywhere, but are "
            f"{', '.join(current)} {location}, and {', '.join(earlier)} elsewhere. Name them with "
            "`fields`"
        )
    for name, field in current.items():
        if field != earlier[name]:
            raise ConfigError(
                f"PredictionWriter: prediction {name!r} must have one dtype, shape and `per`, "
                f"but is {field} {location}, and {earlier[name]} elsewhere. If this was inferred "
                "incorrectly, pass `per`"
            )


def make_ambiguity_error(name: str, width: int) -> ConfigError:
    """Return the error about an output that may be per sequence or per timestep."""
    return ConfigError(
        f"PredictionWriter: `per` is None, but the second dimension of prediction {name!r} is "
        f"{width}, as is the width of every batch, so that it may be of timesteps or of "
        "features. Pass `per='timestep'` or `per='sequence'`"
    )


def _check_batch(batch: Any) -> SequenceBatch:
    if not isinstance(batch, SequenceBatch) or batch.positions is None:
        raise ConfigError(
            must_be(
                "PredictionWriter: the batch",
                "a SequenceBatch, which has the ids of its sequences",
                f"a {type(batch).__name__}",
                "Leave out `as_tuple`, `as_dict`, `as_batch` and a torch `collate_fn`",
            )
        )
    if batch.segments is not None:
        other = "Bucketed(32)"
        if batch.lanes is not None:
            other = "TBPTT(lanes, chunk) without `continuous` and `segments`"
        raise ConfigError(
            "PredictionWriter: a row of the batch must have one sequence, but may have several. "
            f"Predict with another `eval_batching`, such as {other}"
        )
    return batch


def _get_positions(batch: SequenceBatch) -> Tensor:
    return batch.ids if batch.positions is None else batch.positions


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name or name in RESERVED:
        raise ConfigError(
            must_be(
                "PredictionWriter: the name of a prediction",
                f"a non-empty string other than {', '.join(RESERVED)}",
                repr(name),
                "Rename it",
            )
        )


def _to_rows(name: str, output: Any, is_real: Tensor) -> Tensor:
    """Return an output on the CPU, without padding rows, in a dtype of NumPy."""
    if not isinstance(output, Tensor) or output.is_nested or not output.dim():
        kind = type(output).__name__
        if isinstance(output, Tensor):
            kind = "nested tensor" if output.is_nested else "number"
        raise ConfigError(
            must_be(
                f"PredictionWriter: prediction {name!r}",
                "a padded tensor with a row for each row of the batch",
                f"a {kind}",
                "Return one, or a dict of them",
            )
        )
    num_real = int(is_real.sum())
    if len(output) not in (len(is_real), num_real):
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} must have {len(is_real)} rows like the batch, "
            f"or {num_real} like batch.real(), but has shape {tuple(output.shape)}. Return a row "
            "for each."
        )
    if output.is_floating_point() and output.itemsize < 4 and output.dtype != torch.float16:
        output = output.float()  # bfloat16 and smaller, which NumPy does not have
    value = output.detach().cpu()
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in NUMBER_DTYPES:
        raise ConfigError(
            must_be(
                f"PredictionWriter: the dtype of prediction {name!r}",
                f"one of {', '.join(NUMBER_DTYPES)}",
                str(dtype),
                "Convert it",
            )
        )
    if 0 in value.shape[1:]:
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} must have a number in each row, but has "
            f"shape {tuple(value.shape)}. Leave it out."
        )
    rows: Tensor = value if len(value) == num_real else value[is_real]
    return rows


def _guess_per(
    value: Tensor, batch: SequenceBatch, earlier: PredictionField | None, *, has_spans: bool
) -> Per:
    per_row: Per = "span" if has_spans else "sequence"
    if earlier is not None and earlier.per == per_row and earlier.shape == tuple(value.shape[1:]):
        return per_row  # the second dimension is the width of this batch by chance
    return "timestep" if _looks_ragged(value, batch) else per_row


def _looks_ragged(value: Tensor, batch: SequenceBatch) -> bool:
    return value.dim() > 1 and value.shape[1] == batch.padded_length


def _select_timesteps(
    name: str, value: Tensor, batch: SequenceBatch, spans: Tensor, is_real: Tensor
) -> Tensor:
    """Return the scored timesteps of real rows, (timesteps, *shape), row after row."""
    width = batch.padded_length
    if not _looks_ragged(value, batch):
        raise ConfigError(
            f"PredictionWriter: prediction {name!r} must have shape (rows, {width}, …) to be per "
            f"timestep of a batch padded to {width}, but has {tuple(value.shape)}. Return that "
            "shape, or pass `per='sequence'`."
        )
    step, start = torch.arange(width, device=spans.device), batch.start[is_real][:, None]
    is_scored = (step >= spans[:, 1:2] - start) & (step < spans[:, 2:3] - start)  # (rows, T)
    flat = value.reshape(len(value) * width, *value.shape[2:])
    return select_flat(flat, is_scored.flatten().nonzero().flatten())  # faster than value[scored]


def _check_unsplit(name: str, spans: Tensor, batch: SequenceBatch) -> None:
    continued = (spans[:, 1] > 0).nonzero().flatten()
    if len(continued):
        index, start, stop = spans[int(continued[0])].tolist()
        raise ConfigError.at(
            f"PredictionWriter: prediction {name!r} has one row per sequence, but batch "
            f"{batch.number} has timesteps {start}..{stop} of sequence {index} only. Pass "
            "`per='span'` for a row of each span, or do not split sequences",
            sequence=index,
        )


def choose_names(field: str | None, fields: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names in ``field`` or ``fields``; None: all.

    Raises:
        ConfigError: If both are given, or ``fields`` is not a tuple of names.
    """
    if field is not None and fields is not None:
        raise ConfigError(
            "PredictionWriter: `field` and `fields` cannot both be given. Leave one of them out."
        )
    if fields is not None and not are_names(fields):
        raise ConfigError(
            must_be("PredictionWriter: `fields`", "a tuple of names, or None for all", repr(fields))
        )
    if fields is not None:
        return tuple(fields)
    return None if field is None else (field,)
