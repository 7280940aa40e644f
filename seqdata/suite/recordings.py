"""Checks of recordings: sampling rates, and the columns and texts of a transcript."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, warn
from seqdata.suite.table_columns import read_columns

_OWNER = "speech"
_AUDIO, _RATE, _TEXT = "audio", "rate", "text"
_SHOWN = 3


@dataclass(frozen=True)
class CheckRecordings:
    """Checks recordings with transcripts; a ``prepare`` of ``SequenceDataModule``.

    Args:
        rate: Samples per second that all recordings must have.
        by: Name of the column to split by; None: there is no such column.
        features: Transform that makes features of samples; None: samples stay.
        tokenizer: Tokenizer of seqdata-text; None: a token is a character.
        is_ctc: Whether the loss is CTC, which needs a frame for each token.
    """

    rate: int
    by: str | None
    features: Any
    tokenizer: Any
    is_ctc: bool

    def __call__(self, store: Any) -> tuple[Any, list[str]]:
        """Return the store without recordings whose text is blank, and notes for ``describe``.

        Raises:
            ConfigError: If the store lacks the column to split by, a recording does not have
                ``rate``, or all texts are blank.
        """
        self._check_column(store)
        if _RATE in store.fields:
            check_rates(_OWNER, store, self.rate)
        if _TEXT not in store.fields:
            return store, []
        texts = _read(store, _TEXT)
        is_blank = np.array([not text.strip() for text in texts], dtype=np.bool_)
        notes = _drop_blank(store, is_blank)
        if is_blank.any():
            store = store.take(np.flatnonzero(~is_blank))
            texts = [text for text, blank in zip(texts, is_blank, strict=True) if not blank]
        if self.is_ctc:
            notes += self._find_too_long(store, texts)
        for note in notes:
            warn(f"{_OWNER}: {note}")
        return store, notes

    def _check_column(self, store: Any) -> None:
        if self.by is not None and self.by not in store.fields:
            others = [name for name in store.fields if name not in (_AUDIO, _RATE, _TEXT)]
            found = ", ".join(others) if others else "none"
            raise ConfigError(
                f"{_OWNER}: `split_by` must be a further column of the transcript ({found}), but "
                f"is {self.by!r}. Name the column of the speakers, or pass split_by=None, with "
                "which one speaker may be in two parts"
            )

    def _find_too_long(self, store: Any, texts: list[str]) -> list[str]:
        """Return one note if texts have more tokens than their recordings have frames, or none."""
        frames = np.asarray(store.lengths, dtype=np.int64)
        if self.features is not None:
            frames = np.asarray(self.features.lengths(frames))
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        if self.tokenizer is not None:  # a token has at least a byte
            bytes_ = np.array([len(text.encode()) for text in texts], dtype=np.int64)
            asked = np.flatnonzero(bytes_ > frames)
            sizes = np.zeros(len(texts), dtype=np.int64)
            sizes[asked] = self.tokenizer.encode([texts[at] for at in asked.tolist()])[1]
        wrong = np.flatnonzero(sizes > frames)
        if not len(wrong):
            return []
        at = wrong[:1]
        return [
            f"{len(wrong)} of {len(texts)} recordings have more tokens than frames, for which the "
            f"loss of CTC is infinite (the first: {store.ids[at][0]!r}, {sizes[at[0]]} tokens, "
            f"{frames[at[0]]} frames). Correct or remove their rows of the transcript, or pass "
            "zero_infinity=True to the loss"
        ]


def check_rates(owner: str, store: Any, rate: int | None = None) -> None:
    """Raise if recordings do not all have the same sampling rate, or not the given one.

    Args:
        owner: Beginning of the message.
        store: Recordings with a field ``rate``, one value per sequence.
        rate: Samples per second that all must have; None: any, if it is the same for all.

    Raises:
        ConfigError: If sampling rates differ from each other or from ``rate``.
    """
    rates = np.asarray(_read(store, _RATE))
    found, firsts, counts = np.unique(rates, return_index=True, return_counts=True)
    if len(found) <= 1 and (rate is None or set(found.tolist()) <= {rate}):
        return
    ids = store.ids[firsts]
    listed = ", ".join(
        f"{each} Hz: {count} (the first: {id_!r})"
        for each, count, id_ in zip(found.tolist(), counts.tolist(), ids, strict=True)
    )
    needed = "one sampling rate" if rate is None else f"the sampling rate {rate} Hz (`rate`)"
    remedy = "Resample the files of the others, or move them out of the source"
    if rate is not None and len(found) == 1:
        remedy = f"Pass rate={found[0]}, or resample the files"
    raise ConfigError(
        f"{owner}: all recordings must have {needed}, but they have {listed}. {remedy}"
    )


def _read(store: Any, name: str) -> Any:
    """Return a field with one value per sequence: a list of strings, or numbers (sequences,)."""
    lengths, axis = np.zeros(len(store), dtype=np.int64), next(iter(store.lengths_of))
    return read_columns(store, (name,), lengths, axis)[name]


def _drop_blank(store: Any, is_blank: NDArray[np.bool_]) -> list[str]:
    """Return one note about recordings whose text is blank, or none.

    Raises:
        ConfigError: If all texts are blank.
    """
    blank = np.flatnonzero(is_blank)
    if not len(blank):
        return []
    some = ", ".join(map(repr, store.ids[blank[:_SHOWN]]))
    some += ", ..." if len(blank) > _SHOWN else ""
    if len(blank) == len(is_blank):
        raise ConfigError(
            f"{_OWNER}: recordings must have a text in the transcript, but all of the {len(blank)} "
            f"texts are blank ({some}). Check the column of the text"
        )
    return [
        f"{len(blank)} of {len(is_blank)} recordings have a blank text and are dropped ({some})"
    ]
