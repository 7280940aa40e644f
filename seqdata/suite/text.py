"""Language modelling: a corpus of texts, tokenized once, as streams, packed or padded rows."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from seqdata.arguments import check_arguments
from seqdata.errors import ConfigError, check_count, must_be
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.mix import Mix
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.runs.options import check_split
from seqdata.storage.remote.options import Remote
from seqdata.suite.sources import find_backend

_OWNER = "text"
_TOKENS = "tokens"
_LANES, _CHUNK, _ROW_LENGTH, _MAX_TOKENS = 32, 256, 1024, 16_384

Layout = Literal["tbptt", "packed", "padded"]


@dataclass(frozen=True, slots=True)
class ChunkByEpoch:
    """Number of timesteps of a chunk by epoch, for ``chunk`` of ``TBPTT``.

    Args:
        stages: Pairs of an epoch and the number of timesteps from this epoch on. The epochs
            increase, and the first one is 0.
    """

    stages: tuple[tuple[int, int], ...]

    def __call__(self, epoch: int) -> int:
        """Return the number of timesteps of a chunk of an epoch."""
        return next(length for first, length in reversed(self.stages) if first <= epoch)


@final
class TextDataModule(SequenceDataModule):
    """Tokens of texts for a language model: ``batch["tokens"]`` and ``batch["targets"]``.

    ``seqdata-text`` tokenizes the corpus when it is first opened and stores the tokens. Targets are
    the next tokens.

    Args:
        source: A file, folder, glob or URL of plain text, JSON lines, Parquet or Arrow; or name ->
            such a location, for a mixture.
        text: Column of the text, in JSON lines and tables.
        tokenizer: A tokenizer's file or folder, the name of an encoding, ``"bytes"`` or
            ``"chars"``.
        eos: Whether to append the end-of-sequence token of the tokenizer to each document; or the
            token to append.
        weights: Name -> share of the batches, or of the lanes with ``tbptt``, in a mixture; None:
            equal shares.
        layout: ``tbptt``: all documents are a stream that is cut into lanes, and a model carries
            its state from chunk to chunk; ``packed``: rows that hold several documents each, with
            ``batch.segments``; ``padded``: a row is a document.
        lanes: Number of rows of a batch, only with ``tbptt``; None: 32.
        chunk: Number of tokens of a row, only with ``tbptt``; None: 256.
        row_length: Number of tokens of a row, only with ``packed``; longer documents are split.
            None: 1024.
        max_tokens: Maximum number of tokens of a batch, including padding, only with ``packed``
            and ``padded``; longer documents are split. None: 16384.
        curriculum: Pairs of an epoch and the maximum number of tokens of a chunk or document from
            this epoch on. The epochs increase, and the first one is 0. The Trainer needs
            ``reload_dataloaders_every_n_epochs=1``. None: the number stays the same.
        split: Fractions of the documents in each part.
        cache_dir: Folder for tokens; None: next to the corpus, else the user's cache.
        seed: Seed of the order; None: the seed of ``seed_everything``, or 0.
        num_workers: Number of worker processes; 0: read in this process.
        remote: Access to URLs, as in ``open_store``.

    Raises:
        ConfigError: If an argument is invalid, or seqdata-text is not installed.

    Examples:
        data = TextDataModule(
            "corpus/*.jsonl", tokenizer="tok.json", layout="packed", row_length=1024,
            split={"train": 0.9, "val": 0.1},
        )
    """

    @check_arguments
    def __init__(  # noqa: PLR0913
        self,
        source: Any,
        *,
        text: str = "text",
        tokenizer: Any,
        eos: bool | str = True,
        weights: dict[str, float] | None = None,
        layout: Layout = "tbptt",
        lanes: int | None = None,
        chunk: int | None = None,
        row_length: int | None = None,
        max_tokens: int | None = None,
        curriculum: Sequence[Sequence[int | None]] | None = None,
        split: dict[str, Any],
        cache_dir: str | None = None,
        seed: int | None = None,
        num_workers: int = 0,
        remote: Remote | str | None = None,
    ) -> None:
        sizes = {"lanes": lanes, "chunk": chunk, "row_length": row_length, "max_tokens": max_tokens}
        _check_sizes(layout, sizes)
        stages = None if curriculum is None else _check_stages(curriculum)
        policy = _make_policy(layout, sizes, stages)
        if isinstance(source, Mapping):
            policy = Mix(dict(weights or dict.fromkeys(source, 1.0)), policy)
        elif weights is not None:
            raise ConfigError(
                f"{_OWNER}: `weights` are for several sources by name, but the source is one. "
                "Leave them out"
            )
        backend = find_backend(
            "text",
            f"{_OWNER}: TextDataModule",
            ", or pass a store of tokens to SequenceDataModule",
        )
        self._text = dataclasses.replace(
            backend, tokenizer=tokenizer, text=text, eos=eos, cache_dir=cache_dir
        )
        super().__init__(
            train=source,
            backend=self._text,
            split=check_split(_OWNER, split),
            batching=policy,
            shift=1,
            fields=(_TOKENS,),
            seed=seed,
            num_workers=num_workers,
            remote=remote,
        )

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """Sizes that a model needs, by kind and field; ``vocabulary`` has the number of ids."""
        sizes = super().sizes
        package: Any = importlib.import_module(type(self._text).__module__)
        tokenizer = package.load_tokenizer(self._sources.get_store("train"))
        sizes["vocabulary"] = {_TOKENS: int(tokenizer.vocab_size)}
        return sizes


def _check_sizes(layout: str, sizes: Mapping[str, int | None]) -> None:
    """Raise ConfigError if the layout or a size is invalid, or the layout does not use a size."""
    used: dict[str, tuple[str, ...]] = {
        "tbptt": ("lanes", "chunk"),
        "packed": ("row_length", "max_tokens"),
        "padded": ("max_tokens",),
    }
    if layout not in used:
        needed = "'tbptt', 'packed' or 'padded'"
        raise ConfigError(must_be(f"{_OWNER}: `layout`", needed, repr(layout)))
    for name, size in sizes.items():
        check_count(_OWNER, **{name: 1 if size is None else size})
        if size is not None and name not in used[layout]:
            raise ConfigError(
                f"{_OWNER}: `{name}` cannot be used with layout={layout!r}, but is {size}. Leave "
                "it out"
            )


def _check_stages(curriculum: Any) -> tuple[tuple[int, int | None], ...]:
    try:
        stages = tuple((first, most) for first, most in curriculum)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            must_be(
                f"{_OWNER}: `curriculum`", "pairs of an epoch and a number of tokens",
                repr(curriculum),
            )
        ) from error  # fmt: skip
    firsts = [first for first, _ in stages]
    if not stages or firsts[0] != 0 or firsts != sorted(set(firsts)):
        needed = "pairs whose epochs increase and begin with 0"
        raise ConfigError(must_be(f"{_OWNER}: `curriculum`", needed, repr(curriculum)))
    return stages


def _make_policy(
    layout: str, sizes: Mapping[str, int | None], stages: tuple[tuple[int, int | None], ...] | None
) -> Any:
    if layout == "tbptt":
        chunk: Any = sizes["chunk"] or _CHUNK
        if stages is not None:
            chunk = ChunkByEpoch(tuple((first, most or chunk) for first, most in stages))
        return TBPTT(sizes["lanes"] or _LANES, chunk, continuous=True)
    max_tokens = sizes["max_tokens"] or _MAX_TOKENS
    policy: Any
    if layout == "packed":
        row_length = sizes["row_length"] or _ROW_LENGTH
        policy = Packed(max(1, max_tokens // row_length), row_length, too_long="split")
    else:
        policy = TokenBudget(max_tokens, max_length=max_tokens, too_long="split")
    return policy if stages is None else Curriculum(policy, max_length=list(stages))
