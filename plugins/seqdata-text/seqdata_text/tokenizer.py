"""Loading of tokenizers from a file, folder, name or object, behind one interface.

A tokenizer consists of its kind and its content, which can be written to a file. A store of tokens
has the digest of both and a copy of the tokenizer that made them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be
from seqdata_text.models import MODELS, Model, dump_object, find_encoding

FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""File names of a tokenizer in a folder; the first that exists is loaded."""
_CONFIG = "tokenizer_config.json"
_NAMES = ("bytes", "chars")


@dataclass(frozen=True)
class Tokenizer:
    """Tokenizer that converts texts to token ids and back; ``load_tokenizer`` returns one.

    Attributes:
        kind: ``tokenizers``, ``sentencepiece``, ``tiktoken``, ``bytes`` or ``chars``.
        content: Content of the tokenizer's file; for ``tiktoken`` and ``chars``, JSON that this
            package writes; for ``bytes``, empty.
        name: File or name of the tokenizer, for messages.
        eos: End-of-sequence token of the configuration, or the id that was used; empty: the one
            that the model declares, or the only one with a usual name.
        bos: Beginning-of-sequence token, in the same form.

    Examples:
        >>> tokenizer = load_tokenizer("bytes")
        >>> tokens, lengths = tokenizer.encode(["hi", ""])
        >>> tokens.tolist(), lengths.tolist(), tokenizer.decode(tokens)
        ([104, 105], [2, 0], 'hi')
    """

    kind: str
    content: bytes
    name: str
    eos: str | int = ""
    bos: str | int = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the model, which each process loads again."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def model(self) -> Model:
        """Model that encodes.

        Raises:
            ConfigError: If its package is not installed, or the content is damaged.
        """
        return MODELS[self.kind](self.content, self.name)

    @cached_property
    def digest(self) -> str:
        """Digest of kind, content and special tokens, 32 hex digits."""
        digest = hashlib.sha256(f"{self.kind}\n{self.eos}\n{self.bos}\n".encode())
        digest.update(self.content)
        return digest.hexdigest()[:32]

    @property
    def vocab_size(self) -> int:
        """Largest token id plus one, which is the number of rows of an embedding."""
        return self.model.size

    @property
    def eos_id(self) -> int | None:
        """Id of the end-of-sequence token; None if there is none, or several candidates."""
        return self._find_special(self.eos, self.model.eos)

    @property
    def bos_id(self) -> int | None:
        """Id of the beginning-of-sequence token; None if there is none, or several candidates."""
        return self._find_special(self.bos, self.model.bos)

    def _find_special(self, token: str | int, usual: Sequence[int]) -> int | None:
        if isinstance(token, int):
            return token
        if token:
            return self.model.find(token)
        return usual[0] if len(usual) == 1 else None

    def encode(
        self, texts: Sequence[str], *, threads: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the token ids of texts, without special tokens at their ends.

        Args:
            texts: The texts.
            threads: Number of threads, for libraries with this option; 0: all processors.

        Returns:
            Concatenated ids of all texts, int64 (tokens,), and number of tokens of each text, int64
            (texts,).

        Raises:
            ValueError: If a text has a character that ``chars`` does not have.
        """
        pieces = self.model.encode(list(texts), threads or (os.cpu_count() or 1))
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        if not pieces or isinstance(pieces[0], np.ndarray):
            return np.concatenate([np.zeros(0, np.int64), *pieces]), lengths
        joined = itertools.chain.from_iterable(pieces)
        return np.fromiter(joined, np.int64, int(lengths.sum())), lengths

    def decode(self, tokens: Any) -> str:
        """Return the text of token ids, without special tokens.

        Args:
            tokens: Ids, integers: a list, an array, or a tensor on the CPU.

        Raises:
            ConfigError: If they are not integers, or one is not an id of this tokenizer.
        """
        ids = np.asarray(tokens).reshape(-1)
        if ids.size == 0:
            return ""
        if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= self.vocab_size:
            found = ids.dtype.name if ids.dtype.kind not in "iu" else f"{ids.min()}..{ids.max()}"
            needed = f"token ids in [0, {self.vocab_size}) of {self.name}"
            is_integer = ids.dtype.kind in "iu"
            remedy = "Leave padding and ignored positions out" if is_integer else "Pass integers"
            raise ConfigError(must_be("decode: `tokens`", needed, found, remedy))
        return self.model.decode(ids.tolist())

    def resolve(self, role: str, value: bool | int | str) -> int | None:
        """Return the id of a special token of documents.

        Args:
            role: ``eos`` or ``bos``.
            value: True for the token of the tokenizer, a token or its id, or False for none.

        Raises:
            ConfigError: If the tokenizer does not have the token or id, or has several candidates.
        """
        if value is False or value is None:
            return None
        where = f"Text: `{role}`"
        if isinstance(value, int) and value is not True:
            if 0 <= value < self.vocab_size:
                return value
            raise ConfigError(
                must_be(
                    where, f"a token id in [0, {self.vocab_size})", repr(value), "Pass one of these"
                )
            )
        if value is True:
            own = self.eos_id if role == "eos" else self.bos_id
            if own is not None:
                return own
            usual = self.model.eos if role == "eos" else self.model.bos
            found = " or ".join(map(repr, map(self.model.token, usual)))
            problem = f"several candidates: {found}" if usual else "no token of a usual name for it"
            raise ConfigError(
                f"{where} is True, but {self.name} has {problem}. Pass the token itself, such as "
                f"`{role}='</s>'`, or its id, or leave it out"
            )
        found_id = self.model.find(value)
        if found_id is None:
            needed = f"a token of {self.name}"
            raise ConfigError(must_be(where, needed, repr(value), "Check its spelling"))
        return found_id


def load_tokenizer(source: Any) -> Tokenizer:
    """Load a tokenizer.

    Args:
        source: A file (``tokenizer.json`` of the library tokenizers, or ``.model`` of
            sentencepiece); a folder with such a file, as transformers saves it; a folder or store
            of tokens from ``tokenize``; the name of an encoding of tiktoken, which downloads files
            that its cache does not have; ``"bytes"``; or an object of these libraries.

    Raises:
        ConfigError: If ``source`` is none of these, is damaged, or needs a package that is not
            installed. Part of this is noticed only when the tokenizer is used.

    Examples:
        >>> load_tokenizer("bytes").vocab_size
        258
    """
    if isinstance(source, Tokenizer):
        return source
    if isinstance(source, str | os.PathLike):
        return _load_named(os.fspath(source))
    folder = _find_folder(source)
    if folder is not None:
        return _load_folder(Path(folder))
    kind, content = dump_object(source)
    return _share(kind, content, f"the given {type(source).__name__}")


def _find_folder(source: Any) -> str | None:
    """Return the folder of a store of tokens, or of the store below a view; None if it has none."""
    while source is not None:
        folder: str | None = getattr(source, "folder", None)
        if folder is not None:
            return folder
        base = getattr(source, "base", None)
        source = None if base is source else base
    return None


@lru_cache(maxsize=8)
def _share(kind: str, content: bytes, name: str, eos: str = "", bos: str = "") -> Tokenizer:
    """Return a tokenizer, cached so that its model is loaded once."""
    return Tokenizer(kind, content, name, eos, bos)


def make_chars(texts: Iterable[str]) -> Tokenizer:
    """Return a tokenizer of the characters of texts, in the order of their code points."""
    characters = "".join(sorted(set().union(*map(set, texts))))
    content = json.dumps({"format": "seqdata-chars", "characters": characters}).encode()
    return Tokenizer("chars", content, "chars")


def _load_named(name: str) -> Tokenizer:
    path = Path(name).expanduser()
    if path.is_dir():
        return _load_folder(path)
    if path.is_file():
        return _load_file(path)
    if name == "bytes":
        return _share("bytes", b"", name)
    if name == "chars":
        raise ConfigError(
            "tokenizer 'chars': is made from the characters of a corpus while it is tokenized, and "
            "cannot be loaded by this name. Pass the folder of its tokens, or the tokenizer file "
            "in it"
        )
    content = find_encoding(name)
    if content is not None:
        return _share("tiktoken", content, name)
    needed = (
        "a file (`tokenizer.json`, or `.model` of sentencepiece), a folder with one, a folder of "
        "tokens, the name of an encoding of tiktoken (if it is installed), 'bytes' or 'chars'"
    )
    remedy = (
        "Check the path. Nothing is downloaded from a hub: to use a tokenizer from there, download "
        "its files first"
    )
    raise ConfigError(must_be("`tokenizer`", needed, repr(name), remedy))


def _load_folder(folder: Path) -> Tokenizer:
    from seqdata_text.record import read_record  # which names tokenizers, too

    record = read_record(folder)
    if record is not None:
        return record.load_tokenizer(folder)
    for name in FILES:
        if (folder / name).is_file():
            return _load_file(folder / name)
    raise ConfigError(
        must_be(
            f"tokenizer {str(folder)!r}", f"a folder of tokens, or with {' or '.join(FILES)}",
            "a folder without such a file", "Pass the path of the file",
        )
    )  # fmt: skip


def _load_file(path: Path) -> Tokenizer:
    """Return the tokenizer in a file; its content says the kind, or else its suffix."""
    content = path.read_bytes()
    special = _read_special(path.with_name(_CONFIG))
    if content.lstrip()[:1] == b"{":
        try:
            parsed = json.loads(content)
        except ValueError as error:
            raise ConfigError(
                must_be(f"tokenizer {str(path)!r}", "valid JSON", f"not ({error})", "Restore it")
            ) from error
        if parsed.get("format") == "seqdata-chars":
            return _share("chars", content, str(path))
        if parsed.get("format") == "seqdata-tiktoken":
            return _share("tiktoken", content, str(path))
        return _share("tokenizers", content, str(path), **special)
    if path.suffix == ".tiktoken":
        raise ConfigError(
            f"tokenizer {str(path)!r}: a .tiktoken file has ranks, but no pattern and no special "
            "tokens. Pass the `tiktoken.Encoding` that is made from it, or the name of an encoding "
            "(its files are found by TIKTOKEN_CACHE_DIR)"
        )
    return _share("sentencepiece", content, str(path), **special)


def _read_special(config: Path) -> dict[str, str]:
    """Return role (``eos``, ``bos``) -> special token, from the configuration next to a file."""
    if not config.is_file():
        return {}
    try:
        parsed = json.loads(config.read_bytes())
        found = {role: parsed.get(f"{role}_token") for role in ("eos", "bos")}
        texts = {
            role: value["content"] if isinstance(value, dict) else value
            for role, value in found.items()
        }
    except (ValueError, KeyError, AttributeError) as error:
        needed = "a JSON object with `eos_token` and `bos_token` as strings"
        raise ConfigError(
            must_be(f"tokenizer {str(config)!r}", needed, f"not ({error!r})", "Restore it")
        ) from error
    return {role: str(text) for role, text in texts.items() if text}


@lru_cache(maxsize=4)
def load_saved(path: str, kind: str, digest: str, eos: str | int, bos: str | int) -> Tokenizer:
    """Load a tokenizer from the copy next to its tokens; cached in each process.

    Raises:
        ConfigError: If the copy is missing or was changed.
    """
    remedy = "Restore it, or tokenize again"
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(
            must_be(f"tokenizer {path!r}", "as it was saved", "missing", remedy)
        ) from error
    tokenizer = Tokenizer(kind, content, path, eos, bos)
    if tokenizer.digest != digest:
        raise ConfigError(must_be(f"tokenizer {path!r}", "as it was saved", "changed", remedy))
    return tokenizer
