"""Event sequences: the logs of users, patients or machines, a row of a table per event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from seqdata.arguments import check_arguments
from seqdata.errors import ConfigError, check_count, must_be
from seqdata.fitting.field_chunk import Estimator
from seqdata.fitting.labels import Labels
from seqdata.fitting.mean_std import MeanStd
from seqdata.fitting.vocabulary import Vocabulary
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted, balanced
from seqdata.protocols import Store
from seqdata.runs.options import check_split
from seqdata.storage.fields import is_text
from seqdata.storage.remote.options import Remote
from seqdata.suite.event_table import EventTable, TimeDelta
from seqdata.suite.sources import as_names, is_grouped, list_parts

_OWNER = "events"
_INPUTS = ("categorical", "numeric", "static")


@dataclass(frozen=True, slots=True)
class EventStatistics:
    """Estimators of the fields of event sequences, for ``statistics`` of ``SequenceDataModule``.

    Args:
        categorical: Fields of tokens, which become ids: 0 is padding, 1 an unknown token.
        numeric: Fields of numbers, which are standardized.
        static: Fields with one value per sequence. Strings become class indices, -1 for unknown
            ones; numbers are standardized.
        label: Field of the label, whose strings, integers or booleans become class indices; floats
            stay as they are. None: there is no label.
        min_count: Minimum number of occurrences of a token with an id of its own.
    """

    categorical: tuple[str, ...]
    numeric: tuple[str, ...]
    static: tuple[str, ...]
    label: str | None
    min_count: int

    def __call__(self, store: Store) -> dict[str, Estimator]:
        """Return field -> estimator, of the fields of a store that need one."""
        found: dict[str, Estimator] = {
            name: Vocabulary(min_count=self.min_count) for name in self.categorical
        }
        found.update(dict.fromkeys(self.numeric, MeanStd(nan="impute")))
        for name in self.static:
            field = store.fields[name]
            if name == self.label:
                continue
            if is_text(field):
                found[name] = Labels(unknown=-1)
            elif np.dtype(field.dtype).kind in "fiu":
                found[name] = MeanStd(nan="impute")
        if self.label is not None:
            field = store.fields[self.label]
            if is_text(field) or np.dtype(field.dtype).kind in "iub":
                found[self.label] = Labels()
        return found


@final
class EventDataModule(SequenceDataModule):
    """Sequences of events, in batches of about equal numbers of events.

    The table has a row per event, in any order if there is a time column. A batch has (B, T) ids
    for each categorical column, (B, T) numbers for each numeric column and, with a time column and
    unless ``time_delta`` is None, ``time_delta`` (B, T). Static columns and the label have shape
    (B,). With ``next_event``, the batch also has ``targets`` (B, T).

    Args:
        source: A table (pandas, Polars, Arrow), its file, a folder or glob of such files, their
            URL, or a store with a sequence per id.
        id: Column that identifies the sequence, such as the user, patient or machine.
        time: Column of times, as dates or integers, which have no unit. None: rows must be in
            order, and all rows of an id must be contiguous.
        categorical: Columns of strings or integers, such as kinds of events. The ids of their
            values are fitted on the training data.
        numeric: Columns of numbers, standardized with statistics of the training data.
        static: Columns with one value per id. Strings become class indices, -1 for strings that the
            training data lacks; numbers are standardized.
        last: Number of most recent events of a sequence to keep; None: all.
        time_delta: ``log1p``: the field ``time_delta`` is the logarithm of 1 plus the seconds since
            the previous event. With integer times, it is the logarithm of 1 plus their difference,
            in their own unit, such as milliseconds; convert them to dates for seconds. None: the
            field is not made.
        label: Column with one value per id. Strings, integers and booleans become class indices,
            and ``sizes["classes"]`` has the number of classes. Floats, including whole numbers,
            are regression targets: float32, not scaled. A missing or infinite label is an error:
            drop the rows of its id. Then convert the labels to integers again if they are classes,
            because pandas turns integers with gaps into floats. None: there is no label.
        next_event: Categorical column whose next value is ``batch["targets"]``; None: there are no
            targets.
        balance: Column with one value per id, such as the label, whose values are drawn equally
            often in training; None: each sequence is drawn once per epoch.
        split: Fractions of the sequences, grouped by ``split_by``, which are approximate, or exact
            with ``"exact": True``; or ranges of time such as
            ``{"train": "..2024-01-01", "val": "2024-01-01.."}``, which cut sequences.
        split_by: ``"id"``, or a column with one value per id, whose equal values stay in one part.
            Ranges of time ignore it.
        cutoff: Date, or integer for integer times. Events at this time or later are dropped, so
            that they cannot reveal the label. None: all events are kept.
        min_count: Minimum number of occurrences of a token with an id of its own.
        max_tokens: Maximum number of events in a batch, including padding.
        seed: Seed of the order; None: the seed of ``seed_everything``, or 0.
        num_workers: Number of worker processes; 0: read in this process.
        remote: Access to URLs, as in ``open_store``.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> import pandas as pd
        >>> columns = {"user": list("aabbb"), "event": list("xyxxz"), "t": [2, 1, 1, 2, 3]}
        >>> data = EventDataModule(
        ...     pd.DataFrame(columns), id="user", time="t", categorical="event",
        ...     split={"train": 1.0},
        ... )
        >>> next(iter(data.train_dataloader()))["event"].shape
        torch.Size([2, 3])
    """

    @check_arguments
    def __init__(  # noqa: PLR0913
        self,
        source: Any,
        *,
        id: str,
        time: str | None = None,
        categorical: str | Sequence[str],
        numeric: str | Sequence[str] = (),
        static: str | Sequence[str] = (),
        last: int | None = None,
        time_delta: TimeDelta = "log1p",
        label: str | None = None,
        next_event: str | None = None,
        balance: str | None = None,
        split: dict[str, Any],
        split_by: str = "id",
        cutoff: str | int | None = None,
        min_count: int = 1,
        max_tokens: int = 16384,
        seed: int | None = None,
        num_workers: int = 0,
        remote: Remote | str | None = None,
    ) -> None:
        check_count(_OWNER, min_count=min_count, max_tokens=max_tokens)
        check_count(_OWNER, last=1 if last is None else last)
        self.categorical = as_names(_OWNER, "categorical", categorical)
        self.numeric = as_names(_OWNER, "numeric", numeric)
        self.static = as_names(_OWNER, "static", static)
        self.label, self._label, self.next_event = label, label, next_event
        if not self.categorical:
            raise ConfigError(must_be(f"{_OWNER}: `categorical`", "a column, or several", "empty"))
        if next_event is not None and next_event not in self.categorical:
            needed = f"one of {', '.join(self.categorical)}, the categorical columns"
            raise ConfigError(must_be(f"{_OWNER}: `next_event`", needed, repr(next_event)))
        inputs = self.categorical, self.numeric, self.static
        _check_label(label, dict(zip(_INPUTS, inputs, strict=True)))
        per_sequence = [*self.static, *([] if label is None else [label])]
        per_sequence += [name for name in (balance, split_by) if name not in (None, "id", id)]
        table = EventTable(
            time, self.categorical, self.numeric, tuple(dict.fromkeys(per_sequence)), last,
            None if time is None else time_delta, cutoff, label,
        )  # fmt: skip
        batching, is_table = TokenBudget(max_tokens), is_grouped(source, remote)
        super().__init__(
            train=source,
            group=id if is_table else None,
            order=time if is_table else None,
            missing="nan" if is_table else None,
            prepare=table,
            split=_make_split(check_split(_OWNER, split), time, split_by, id),
            statistics=EventStatistics(*inputs, label, min_count),
            batching=batching if balance is None else Weighted(batching, balanced(balance)),
            eval_batching=batching,
            shift=0 if next_event is None else {next_event: 1},
            dtype="float32",
            seed=seed,
            num_workers=num_workers,
            remote=remote,
        )


def _check_label(label: str | None, inputs: Mapping[str, tuple[str, ...]]) -> None:
    """Raise ConfigError if the label is an input, too."""
    for argument, names in inputs.items():
        if label in names:
            raise ConfigError(
                f"{_OWNER}: `label` must not be an input, but {label!r} is in `{argument}`, too. "
                "Leave it out there: the batch has the label anyway"
            )


def _make_split(split: dict[str, Any], time: str | None, split_by: str, id: str) -> dict[str, Any]:
    if any(isinstance(part, str) for part in list_parts(split)):
        if time is None:
            raise ConfigError(
                f"{_OWNER}: ranges of `split` need `time`, but it is None. Name the column of the "
                "time, or pass fractions"
            )
        return {"along": time, **split}
    by = None if split_by in ("id", id) else split_by
    return {"by": by, **split} if by is not None else split
