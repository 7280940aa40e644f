"""Adapters of tokenizer libraries to one interface; a library is imported when it is used."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be

_EOS_NAMES = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|eos|>", "[EOS]")
_BOS_NAMES = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|bos|>", "[BOS]")
_BYTES = 256
_LAST_CHARACTER = 0x10FFFF

Pieces = list[list[int]] | list[NDArray[np.int64]]


class Model(Protocol):
    """A loaded tokenizer.

    Attributes:
        size: The largest id plus one.
        eos: Ids of the tokens that may be the end-of-sequence token: the one that the model
            declares, or those with usual names.
        bos: Ids of the tokens that may be the beginning-of-sequence token, found in the same way.
    """

    size: int
    eos: Sequence[int]
    bos: Sequence[int]

    def encode(self, texts: list[str], threads: int) -> Pieces:
        """Return the ids of each text."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without special tokens."""
        ...

    def find(self, token: str) -> int | None:
        """Return the id of a token; None if there is none."""
        ...

    def token(self, index: int) -> str:
        """Return the token of an id."""
        ...


class HuggingFaceModel:
    """Tokenizer of a ``tokenizer.json``; its truncation, padding and template are not applied."""

    def __init__(self, content: bytes, name: str) -> None:
        tokenizers = _import("tokenizers", name)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # the library raises Exception itself
            raise _make_damaged_error(name, "a tokenizer.json", error) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(vocabulary.values(), default=-1) + 1
        self.eos: Sequence[int] = [vocabulary[name] for name in _EOS_NAMES if name in vocabulary]
        self.bos: Sequence[int] = [vocabulary[name] for name in _BOS_NAMES if name in vocabulary]

    def encode(self, texts: list[str], threads: int) -> Pieces:
        """Return the ids of each text; the library decides about threads."""
        del threads
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [one.ids for one in encoded]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def find(self, token: str) -> int | None:
        """Return the id of a token; None if there is none."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def token(self, index: int) -> str:
        """Return the token of an id."""
        return str(self._tokenizer.id_to_token(index))


class SentencePieceModel:
    """Tokenizer of a ``.model`` file of sentencepiece."""

    def __init__(self, content: bytes, name: str) -> None:
        sentencepiece = _import("sentencepiece", name)
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(content)
            self.size = int(self._processor.vocab_size())
        except (RuntimeError, OSError) as error:
            raise _make_damaged_error(name, "a model of sentencepiece", error) from error
        self.eos: Sequence[int] = [id_ for id_ in (int(self._processor.eos_id()),) if id_ >= 0]
        self.bos: Sequence[int] = [id_ for id_ in (int(self._processor.bos_id()),) if id_ >= 0]

    def encode(self, texts: list[str], threads: int) -> Pieces:
        """Return the ids of each text."""
        found: list[list[int]] = self._processor.encode(texts, out_type=int, num_threads=threads)
        return found

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self._processor.decode(ids))

    def find(self, token: str) -> int | None:
        """Return the id of a token; None if there is none."""
        found = int(self._processor.piece_to_id(token))
        return found if self.token(found) == token else None  # an unknown one has an id, too

    def token(self, index: int) -> str:
        """Return the token of an id."""
        return str(self._processor.id_to_piece(index))


class TiktokenModel:
    """Encoding of tiktoken, read from JSON; a special token in a text is encoded as plain text."""

    def __init__(self, content: bytes, name: str) -> None:
        tiktoken = _import("tiktoken", name)
        try:
            parsed = json.loads(content)
            ranks = {base64.b64decode(text): rank for text, rank in parsed["ranks"].items()}
            self._special: Mapping[str, int] = parsed["special_tokens"]
            self._encoding = tiktoken.Encoding(
                parsed["name"], pat_str=parsed["pattern"], mergeable_ranks=ranks,
                special_tokens=self._special,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise _make_damaged_error(name, "an encoding of tiktoken", error) from error
        self.size = int(self._encoding.n_vocab)
        self.eos: Sequence[int] = [
            self._special[name] for name in _EOS_NAMES if name in self._special
        ]
        self.bos: Sequence[int] = [
            self._special[name] for name in _BOS_NAMES if name in self._special
        ]

    def encode(self, texts: list[str], threads: int) -> Pieces:
        """Return the ids of each text."""
        found: list[list[int]] = self._encoding.encode_ordinary_batch(texts, num_threads=threads)
        return found

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without special tokens."""
        special = set(self._special.values())
        return str(self._encoding.decode([id_ for id_ in ids if id_ not in special]))

    def find(self, token: str) -> int | None:
        """Return the id of a special or an ordinary token; None if there is none."""
        if token in self._special:
            return self._special[token]
        try:
            return int(self._encoding.encode_single_token(token))
        except KeyError:
            return None

    def token(self, index: int) -> str:
        """Return the token of an id."""
        return str(self._encoding.decode([index]))


class BytesModel:
    """Tokenizer of UTF-8 bytes, with ids 0 to 255; 256 is the end token, 257 the start token."""

    def __init__(self, content: bytes, name: str) -> None:
        del content, name
        self.size = _BYTES + 2
        self.eos: Sequence[int] = [_BYTES]
        self.bos: Sequence[int] = [_BYTES + 1]

    def encode(self, texts: list[str], threads: int) -> Pieces:
        """Return the ids of each text."""
        del threads
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int64) for text in texts]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids; incomplete characters become U+FFFD."""
        return bytes(id_ for id_ in ids if id_ < _BYTES).decode(errors="replace")

    def find(self, token: str) -> int | None:
        """Return the byte of an ASCII character; None for others."""
        return ord(token) if len(token) == 1 and ord(token) < _BYTES // 2 else None

    def token(self, index: int) -> str:
        """Return the character of an id."""
        return chr(index)


class CharsModel:
    """Tokenizer of characters in the order of code points; the last ids are end and start token."""

    def __init__(self, content: bytes, name: str) -> None:
        try:
            self._characters = str(json.loads(content)["characters"])
        except (ValueError, KeyError, TypeError) as error:
            raise _make_damaged_error(name, "a list of characters", error) from error
        codes = self._to_codes(self._characters)
        self._ids = np.full(_LAST_CHARACTER + 1, -1, dtype=np.int64)
        self._ids[codes] = np.arange(len(codes))
        self._name = name
        self.size = len(codes) + 2
        self.eos: Sequence[int] = [len(codes)]
        self.bos: Sequence[int] = [len(codes) + 1]

    @staticmethod
    def _to_codes(text: str) -> NDArray[np.uint32]:
        return np.frombuffer(text.encode("utf-32-le"), "<u4")

    def encode(self, texts: list[str], threads: int) -> Pieces:
        """Return the ids of each text.

        Raises:
            ValueError: If a text has a character that the tokenizer does not have.
        """
        del threads
        pieces = []
        for text in texts:
            ids = self._ids[self._to_codes(text)]
            if ids.size and ids.min() < 0:
                unknown = text[int(np.flatnonzero(ids < 0)[0])]
                raise ValueError(
                    f"must only have characters of {self._name}, but has {unknown!r} "
                    f"(U+{ord(unknown):04X}). Make the tokenizer from a corpus with all characters"
                )
            pieces.append(ids)
        return pieces

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""
        count = len(self._characters)
        return "".join(self._characters[id_] for id_ in ids if id_ < count)

    def find(self, token: str) -> int | None:
        """Return the id of a character; None if the tokenizer does not have it."""
        if len(token) != 1 or self._ids[ord(token)] < 0:
            return None
        return int(self._ids[ord(token)])

    def token(self, index: int) -> str:
        """Return the character of an id."""
        return self._characters[index] if index < len(self._characters) else ""


MODELS: Mapping[str, Callable[[bytes, str], Model]] = {
    "tokenizers": HuggingFaceModel,
    "sentencepiece": SentencePieceModel,
    "tiktoken": TiktokenModel,
    "bytes": BytesModel,
    "chars": CharsModel,
}
"""Kind -> class, which is called with the content and a name for messages."""


def dump_object(source: Any) -> tuple[str, bytes]:
    """Return kind and content of a tokenizer object of a library.

    Raises:
        ConfigError: If the object is not a tokenizer of a supported library.
    """
    source = getattr(source, "backend_tokenizer", source)  # of transformers
    library = type(source).__module__.partition(".")[0]
    if library == "tokenizers" and hasattr(source, "to_str"):
        return "tokenizers", str(source.to_str()).encode()
    if library == "sentencepiece":
        return "sentencepiece", bytes(source.serialized_model_proto())
    if library == "tiktoken":
        return "tiktoken", _dump_encoding(source)
    needed = "a path, a name, or an object of tokenizers, transformers, sentencepiece or tiktoken"
    remedy = "Save the tokenizer to a file, and pass its path"
    raise ConfigError(must_be("`tokenizer`", needed, f"a {type(source).__name__}", remedy))


def find_encoding(name: str) -> bytes | None:
    """Return an encoding of tiktoken as JSON; None if there is none, or no tiktoken.

    Raises:
        ConfigError: If tiktoken can neither find its files in the cache nor download them.
    """
    try:
        import tiktoken
    except ImportError:
        return None
    if name not in tiktoken.list_encoding_names():
        return None
    try:
        return _dump_encoding(tiktoken.get_encoding(name))
    except Exception as error:  # of the library that fetches what is not in the cache
        raise ConfigError(
            f"tokenizer {name!r}: its files must be on this machine, in the folder that "
            f"TIKTOKEN_CACHE_DIR names, but cannot be loaded ({type(error).__name__}). Copy them "
            "there from a machine that has them"
        ) from error


def _dump_encoding(encoding: Any) -> bytes:
    ranks = encoding._mergeable_ranks
    return json.dumps(
        {
            "format": "seqdata-tiktoken",
            "name": encoding.name,
            "pattern": encoding._pat_str,
            "special_tokens": dict(encoding._special_tokens),
            "ranks": {base64.b64encode(text).decode(): rank for text, rank in ranks.items()},
        }
    ).encode()


def _import(library: str, name: str) -> Any:
    """Import a library and return it.

    Raises:
        ConfigError: If it is not installed.
    """
    import importlib

    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ConfigError(
            f"tokenizer {name!r}: needs the package {library!r}, which is not installed. Run "
            f"`pip install {library}`"
        ) from error


def _make_damaged_error(name: str, needed: str, error: Exception) -> ConfigError:
    found = f"damaged or something else ({str(error).splitlines()[0] if str(error) else error!r})"
    return ConfigError(must_be(f"tokenizer {name!r}", needed, found, "Restore it, or pass another"))
