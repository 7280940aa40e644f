"""Speech: recordings and their transcripts, as features and ids of characters or tokens."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from seqdata.arguments import check_arguments
from seqdata.collators.padded import Padded
from seqdata.errors import ConfigError, check_count, must_be
from seqdata.fitting.vocabulary import FIRST_ID, PAD_ID, Vocabulary
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.transforms.declare import (
    Ragged,
    columnar,
    get_declared_axes,
    is_columnar,
)
from seqdata.policies.token_budget import TokenBudget
from seqdata.runs.options import check_split
from seqdata.storage.remote.options import Remote
from seqdata.suite.recordings import CheckRecordings
from seqdata.suite.sources import find_backend

_OWNER = "speech"
_AUDIO, _RATE, _TEXT = "audio", "rate", "text"
_MELS = 80
_FRAMES_PER_SECOND = 100

BLANK_ID = PAD_ID
"""Index of the blank of CTC: no character or token has it."""
IGNORED_ID = -100
"""Padding of labels: the default ``ignore_index`` of ``torch.nn.functional.cross_entropy``."""

_INPUTS, _LABELS, _MASK = "decoder_input_ids", "labels", "decoder_attention_mask"
_DECODER_FIELDS = (_INPUTS, _LABELS, _MASK)
_PAD_NAMES = ("<pad>", "[PAD]", "<|pad|>")
_ADDED_TO_CHARS = 2  # bos and eos come before the first character
_ADDED_FOR_CTC = 1  # a token with the id 0 would be the blank


@columnar
@dataclass(frozen=True)
class Steps:
    """Columnar transforms, one after the other.

    Args:
        features: Transform of samples to features; None: samples are kept.
        augment: Transform of features that keeps their lengths; None: no augmentation.
        text: Transform of the transcript; None: it is kept.
    """

    features: Any
    augment: Any = None
    text: TextIds | None = None

    @property
    def lengths(self) -> Any:
        """Function from samples to frames, int64 (n,); None: lengths stay."""
        return getattr(self.features, "lengths", None)

    @property
    def axes(self) -> dict[str, str | None]:
        """Field -> axis, of the fields that are made."""
        return {**get_declared_axes(self.features), **get_declared_axes(self.text)}

    def __call__(self, columns: dict[str, Any], seeds: Any) -> dict[str, Any]:
        """Return the columns, transformed by each."""
        for step in (self.features, self.augment, self.text):
            columns = columns if step is None else step(columns, seeds)
        return columns


@dataclass(frozen=True)
class SpecialIds:
    """Ids of a decoder.

    Args:
        pad: Padding of decoder inputs.
        bos: Begin of a text.
        eos: End of a text.
    """

    pad: int
    bos: int
    eos: int


@columnar
@dataclass(frozen=True)
class TextIds:
    """Ids of transcripts: ``text`` for CTC, or inputs, labels and mask of a decoder.

    Args:
        tokenizer: Tokenizer of seqdata-text; None: the column already has ids of characters.
        special: Ids of a decoder; None: the ids are for CTC.
    """

    tokenizer: Any = None
    special: SpecialIds | None = None

    @property
    def axes(self) -> dict[str, str]:
        """Field -> axis, of the fields that are made."""
        return dict.fromkeys((_TEXT,) if self.special is None else _DECODER_FIELDS, _TEXT)

    def __call__(self, columns: dict[str, Any], seeds: Any) -> dict[str, Any]:
        """Return the columns, with ids in place of transcripts."""
        del seeds
        others = {name: column for name, column in columns.items() if name != _TEXT}
        text = columns[_TEXT]
        if self.tokenizer is None:
            ids, lengths = text.values, text.lengths
            ids = np.where(ids >= FIRST_ID, ids + _ADDED_TO_CHARS, ids)
        else:
            ids, lengths = self.tokenizer.encode(text, threads=1)
        if self.special is None:
            return {**others, _TEXT: Ragged(ids + _ADDED_FOR_CTC, lengths)}
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        inputs = np.insert(ids, offsets[:-1], self.special.bos)
        labels = np.insert(ids, offsets[1:], self.special.eos)
        longer = lengths + 1
        values = (inputs, labels, np.ones(len(inputs), dtype=np.bool_))
        named = zip(_DECODER_FIELDS, values, strict=True)
        return {**others, **{name: Ragged(each, longer) for name, each in named}}


@final
class SpeechDataModule(SequenceDataModule):
    """Recordings with transcripts: features along ``time``, ids along ``text``.

    ``batch["mel"]`` is float32 (B, frames, 80) with ``batch.lengths``. With ``target="ctc"``
    ``batch["text"]`` is int64 (B, N) with ``batch.lengths_of["text"]``; 0 is padding and the blank.
    With ``"seq2seq"`` there are ``batch["decoder_input_ids"]``, int64 (B, N + 1): begin and text;
    ``batch["labels"]``, the same shape: text and end, -100 in the padding; and
    ``batch["decoder_attention_mask"]``, bool. ``sizes["ids"]`` has the ids of begin, end and
    padding, or the blank; ``decode`` makes text of ids.

    With ``"chars"``, the vocabulary consists of the characters of the training data, and id 1
    stands for unknown characters. With a tokenizer, the ids of the tokenizer are used, increased by
    1 for CTC. If the tokenizer has no begin, end or padding token, the missing tokens get ids after
    its last one.

    A recording whose text is blank is dropped, like a recording without a row in the transcript; a
    warning and ``describe`` count the blank texts. With ``target="ctc"``, they also count
    recordings with more tokens than frames, which are kept.

    Args:
        source: A folder, file or glob of recordings.
        transcript: Table of texts: CSV, TSV, Parquet, JSON lines or a DataFrame, with ``file`` (or
            ``path``, ``audio_filepath``) and ``text`` (or ``sentence``, ``transcript``); its other
            columns become fields.
        features: ``"log_mel"`` (80 bands, a frame of 25 ms every 10 ms), or a columnar transform
            with ``lengths``, such as those of seqdata-audio; None: the samples are the input.
        rate: Samples per second, the same of all recordings.
        tokenizer: ``"chars"``, or a tokenizer that seqdata-text opens: its file or folder, the name
            of an encoding, ``"bytes"``, or an object of a library of tokenizers.
        target: ``"ctc"``: a row has the ids of its text; ``"seq2seq"``: it has inputs and labels of
            a decoder.
        max_seconds: Maximum duration of a recording. Longer recordings are dropped. None: no limit.
        batch_seconds: Maximum duration of a batch in seconds, including padding.
        augment: Columnar transform of the training features that keeps their lengths, such as
            masking; None: no augmentation.
        split: Fractions of the recordings, grouped by ``split_by``, which are exact with
            ``"exact": True``.
        split_by: Column of the transcript whose equal values stay in one part; None: recordings are
            split on their own.
        seed: Seed of the order and of transforms; None: the seed of ``seed_everything``, or 0.
        num_workers: Number of worker processes; 0: read in this process.
        remote: Access to URLs, as in ``open_store``.

    Raises:
        ConfigError: If an argument is invalid, if seqdata-audio is not installed, or if a
            ``tokenizer`` other than ``"chars"`` is given and seqdata-text is not installed.

    Examples:
        >>> import wave
        >>> import pandas as pd
        >>> for name in ("a.wav", "b.wav"):
        ...     with wave.open(name, "wb") as file:  # 1 channel, int16, 1 second
        ...         file.setparams((1, 2, 16_000, 0, "NONE", ""))
        ...         file.writeframes(bytes(32_000))
        >>> table = [{"file": "a.wav", "text": "yes"}, {"file": "b.wav", "text": "no"}]
        >>> data = SpeechDataModule(
        ...     "*.wav", transcript=pd.DataFrame(table), target="seq2seq", split={"train": 1.0},
        ...     split_by=None,
        ... )
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch["mel"].shape, batch["labels"].shape
        (torch.Size([2, 101, 80]), torch.Size([2, 4]))
        >>> data.sizes["ids"]
        {'pad': 0, 'bos': 2, 'eos': 3}
    """

    @check_arguments
    def __init__(  # noqa: PLR0913
        self,
        source: Any,
        *,
        transcript: Any,
        features: Any = "log_mel",
        rate: int = 16_000,
        tokenizer: Any = "chars",
        target: Literal["ctc", "seq2seq"] = "ctc",
        max_seconds: float | None = None,
        batch_seconds: float = 300,
        augment: Any = None,
        split: dict[str, Any],
        split_by: str | None = "speaker",
        seed: int | None = None,
        num_workers: int = 0,
        remote: Remote | str | None = None,
    ) -> None:
        if target not in ("ctc", "seq2seq"):
            raise ConfigError(must_be(f"{_OWNER}: `target`", "'ctc' or 'seq2seq'", repr(target)))
        check_count(_OWNER, rate=rate)
        backend = find_backend("audio", f"{_OWNER}: SpeechDataModule")
        transform = _make_features(features, rate, backend)
        _check_augment(transform, augment)
        self._features, self._rate = transform, rate
        self._tokenizer = None if tokenizer == "chars" else _load_tokenizer(tokenizer)
        self._special = None if target == "ctc" else _find_special(self._tokenizer)
        text = None
        if self._tokenizer is not None or self._special is not None:
            text = TextIds(self._tokenizer, self._special)
        parts = check_split(_OWNER, split)
        if split_by is not None:
            parts.setdefault("by", split_by)
        by = parts.get("by")
        padding = None
        if self._special is not None:
            padding = Padded({_INPUTS: self._special.pad, _LABELS: IGNORED_ID})
        characters = {_TEXT: Vocabulary(tokens="characters")}
        super().__init__(
            train=source,
            backend=dataclasses.replace(backend, transcript=transcript),
            split=parts,
            statistics=characters if self._tokenizer is None else None,
            batching=_make_policy(transform, rate, batch_seconds, max_seconds),
            transform=_join(transform, augment, text),
            eval_transform=_join(transform, None, text),
            collator=padding,
            prepare=CheckRecordings(
                rate,
                by if isinstance(by, str) else None,
                transform,
                self._tokenizer,
                self._special is None,
            ),
            fields=(_AUDIO, _RATE, _TEXT),
            seed=seed,
            num_workers=num_workers,
            remote=remote,
        )

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """Sizes that a model needs, by kind and field.

        ``features`` are the numbers of a frame; ``vocabulary`` is the number of ids; ``ids`` has
        ``pad``, ``bos`` and ``eos`` of a decoder, or the ``blank`` of CTC.
        """
        sizes = super().sizes
        sizes["features"] = _measure_features(self._features, self._rate)
        if self._special is None:
            sizes["ids"] = {"blank": BLANK_ID}
        else:
            sizes["ids"] = dataclasses.asdict(self._special)
        if self._tokenizer is None:
            added = 0 if self._special is None else _ADDED_TO_CHARS
            sizes["vocabulary"][_TEXT] += added
        else:
            added = _ADDED_FOR_CTC if self._special is None else 0
            last = max(sizes["ids"].values())
            count = max(self._tokenizer.vocab_size + added, last + 1)
            sizes["vocabulary"] = {_TEXT: count}
        return sizes

    def decode(self, ids: Any) -> str:
        """Return the text of the ids of one row, which are labels or predictions.

        Begin, end, padding, blanks and unknown characters are dropped; repeated ids are kept.

        Args:
            ids: Integers: a list, an array or a tensor of one dimension.

        Raises:
            ConfigError: If one is not an id.
        """
        values = np.asarray(ids.detach().cpu() if hasattr(ids, "detach") else ids).reshape(-1)
        values = values[values != IGNORED_ID]
        if self._special is None:
            values = values[values != BLANK_ID]
        else:
            values = values[~np.isin(values, dataclasses.astuple(self._special))]
        if self._tokenizer is not None:
            added = _ADDED_FOR_CTC if self._special is None else 0
            text: str = self._tokenizer.decode(values - added)
            return text
        added = 0 if self._special is None else _ADDED_TO_CHARS
        self._fit_statistics()
        vocabulary: Any = self._sources.options.statistics
        characters = vocabulary[_TEXT].inverse(np.where(values >= FIRST_ID, values - added, values))
        return "".join(each for each in characters if each is not None)


def _load_tokenizer(tokenizer: Any) -> Any:
    """Open a tokenizer with seqdata-text.

    Raises:
        ConfigError: If seqdata-text is not installed, or ``tokenizer`` is not a tokenizer.
    """
    backend = find_backend("text", f"{_OWNER}: `tokenizer` {tokenizer!r}", ", or pass 'chars'")
    package: Any = importlib.import_module(type(backend).__module__.partition(".")[0])
    return package.load_tokenizer(tokenizer)


def _find_special(tokenizer: Any) -> SpecialIds:
    """Return the ids of a decoder: those of the tokenizer, and new ids for tokens it lacks."""
    if tokenizer is None:
        return SpecialIds(PAD_ID, FIRST_ID, FIRST_ID + 1)
    pads = [tokenizer.model.find(name) for name in _PAD_NAMES]
    found = {
        "pad": next((id_ for id_ in pads if id_ is not None), None),
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
    }
    following = itertools.count(tokenizer.vocab_size)
    named = {name: next(following) if id_ is None else id_ for name, id_ in found.items()}
    return SpecialIds(**named)


def _measure_features(features: Any, rate: int) -> dict[str, int]:
    """Return field -> number of values per frame, of the float fields that a transform makes."""
    if features is None:
        return {}
    silence = Ragged(np.zeros(rate, np.int16), np.array([rate], dtype=np.int64))
    made = features({_AUDIO: silence, _RATE: np.array([rate])}, np.zeros(1, np.uint64))
    return {
        name: int(np.prod(column.values.shape[1:]))
        for name, column in made.items()
        if isinstance(column, Ragged) and column.values.dtype.kind == "f"
    }


def _make_features(features: Any, rate: int, backend: Any) -> Any:
    """Return the transform that makes features; None if the samples are the input.

    Raises:
        ConfigError: If ``features`` is not a columnar transform with ``lengths``.
    """
    if features == "log_mel":
        package: Any = importlib.import_module(type(backend).__module__.partition(".")[0])
        hop, window = rate // _FRAMES_PER_SECOND, rate // 40
        return package.LogMel(rate=rate, n_mels=_MELS, n_fft=window, hop_length=hop)
    is_transform = is_columnar(features) and hasattr(features, "lengths")
    if features is not None and not is_transform:
        needed = "'log_mel', None, or a columnar transform with `lengths`, such as MFCC(...)"
        raise ConfigError(must_be(f"{_OWNER}: `features`", needed, repr(features)))
    return features


def _check_augment(transform: Any, augment: Any) -> None:
    """Raise ConfigError if an augmentation is not columnar, or is given without features."""
    if augment is None:
        return
    if transform is None:
        raise ConfigError(
            f"{_OWNER}: `augment` requires features, but `features` is None. Leave it out, or pass "
            "`features`"
        )
    if not is_columnar(augment):
        needed = "a columnar transform of features"
        raise ConfigError(must_be(f"{_OWNER}: `augment`", needed, repr(augment)))


def _join(features: Any, augment: Any, text: TextIds | None) -> Steps | None:
    """Return the transforms as one; None if there is none."""
    is_any = features is not None or text is not None
    return Steps(features, augment, text) if is_any else None


def _make_policy(
    transform: Any, rate: int, batch_seconds: float, max_seconds: float | None
) -> TokenBudget:
    """Return the policy, with seconds converted to frames, or to samples without a transform.

    Raises:
        ConfigError: If a number of seconds is not above 0, or ``max_seconds`` exceeds
            ``batch_seconds``.
    """
    for name, value in (("batch_seconds", batch_seconds), ("max_seconds", max_seconds)):
        if value is not None and not (isinstance(value, int | float) and value > 0):
            raise ConfigError(must_be(f"{_OWNER}: `{name}`", "a number above 0", repr(value)))
    if max_seconds is not None and max_seconds > batch_seconds:
        needed = f"at most `batch_seconds` ({batch_seconds})"
        raise ConfigError(must_be(f"{_OWNER}: `max_seconds`", needed, repr(max_seconds)))

    def count(seconds: float) -> int:
        samples = np.array([round(seconds * rate)], dtype=np.int64)
        return int((samples if transform is None else transform.lengths(samples))[0])

    longest: Mapping[str, Any] = {}
    if max_seconds is not None:
        longest = {"max_length": count(max_seconds), "too_long": "drop"}
    return TokenBudget(count(batch_seconds), **longest)
