"""Text corpora as token stores: ``Text``, a configured backend, and ``tokenize``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from seqdata import SequenceStore, open_store, write_store
from seqdata.backends import DataLocation
from seqdata.backends.files import cache_folder
from seqdata.errors import ConfigError, DataError, DecodeError, must_be, warn
from seqdata_text.corpus import (
    PART_BYTES,
    Corpus,
    FileState,
    Piece,
    choose_part_bytes,
    find_corpus,
    split_corpus,
)
from seqdata_text.documents import Columns, Document, read_documents
from seqdata_text.processes import Processes, choose_workers, count_processors, lock_folder
from seqdata_text.record import (
    PENDING,
    RECORD,
    Record,
    name_copy,
    read_record,
    write_file,
    write_record,
)
from seqdata_text.tokenizer import Tokenizer, load_saved, load_tokenizer, make_chars

FIELD = "tokens"
_MANIFEST = "seqdata.json"
_INDEX_FOLDER = "seqdata-index"
_FORMATS = (None, "text", "jsonl", "parquet", "arrow")
_DOCUMENTS = ("file", "line")
_BATCH_CHARACTERS = 1 << 20
_BATCH_DOCUMENTS = 4096
_CHARS = "chars"

Progress = bool | Callable[[int, int], None] | None


@dataclass(frozen=True)
class Text:
    """Backend that opens a corpus of texts as a store of tokens. Each document is a sequence.

    The corpus is tokenized when it is first opened. The tokens are kept in ``seqdata-index`` next
    to the corpus, or in the user's cache if that cannot be written, where later calls find them. If
    the tokenizer or the corpus has changed, the corpus is tokenized again, with a warning that
    names the change.

    Args:
        tokenizer: Source of a tokenizer, as for ``load_tokenizer``, or ``"chars"`` for the
            characters of the corpus. It is required to open a corpus.
        text: Column of the text, in JSON lines and tables.
        id: Column of ids, strings or integers, in JSON lines and tables; None: the file, and the
            line (from 1) or row (from 0).
        fields: List of further columns of JSON lines and tables, of numbers or strings, that become
            fields of a sequence.
        document: Unit of a document in a plain text: ``"file"``, or ``"line"`` for each line that
            is not empty.
        format: ``text``, ``jsonl``, ``parquet`` or ``arrow``; None: by the suffixes of files.
        eos: Whether to end a document with the end-of-sequence token of the tokenizer; or a token,
            or its id.
        bos: Whether to begin a document with the beginning-of-sequence token; or a token, or its
            id.
        num_workers: Number of processes that tokenize; 0: use this process; None: one for each
            processor. Tokens do not depend on it.
        cache_dir: Folder for tokens; None: next to the corpus.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> import pathlib, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> _ = pathlib.Path(folder, "a.txt").write_text("hi")
        >>> open_store(folder, backend=Text("bytes", eos=True))[0]["tokens"].tolist()
        [104, 105, 256]
    """

    tokenizer: Any = None
    _: KW_ONLY
    text: str = "text"
    id: str | None = None
    fields: Sequence[str] = ()
    document: str = "file"
    format: str | None = None
    eos: bool | int | str = False
    bos: bool | int | str = False
    num_workers: int | None = None
    cache_dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.fields, str):
            needed = "a list of columns"
            raise ConfigError(must_be("Text: `fields`", needed, repr(self.fields), "Use brackets"))
        for name, value, known in (
            ("document", self.document, _DOCUMENTS), ("format", self.format, _FORMATS),
        ):  # fmt: skip
            if value not in known:
                needed = f"one of {', '.join(map(repr, known))}"
                raise ConfigError(must_be(f"Text: `{name}`", needed, repr(value), "Choose one"))
        count = self.num_workers
        is_integer = isinstance(count, int) and not isinstance(count, bool)
        if count is not None and not (is_integer and count >= 0):
            needed = "an integer of at least 0, or None"
            raise ConfigError(must_be("Text: `num_workers`", needed, repr(count), "Leave it out"))

    def __call__(
        self,
        location: str | os.PathLike[str],
        *,
        verify: str | None = None,
        remote: Any = None,
    ) -> SequenceStore:
        """Open a tokenized corpus as a store; tokenize it first if its tokens are not stored yet.

        Args:
            location: A file, a folder (with subfolders) or a glob; or a URL of these, whose files
                are downloaded.
            verify: As in ``open_store``.
            remote: Access to URLs, as in ``open_store``.

        Raises:
            ConfigError: If there is no such corpus, or an argument does not fit it.
            DataError: If a file is damaged, or changed while it was read.
            SeqDataError: If files at a URL cannot be fetched.
        """
        corpus = find_corpus(os.fspath(location), self.format, remote)
        where = os.path.abspath(os.fspath(location))
        if corpus.copies is not None:
            where = corpus.copies.folder.name  # made of the URL
        folder = self._find_folder(where, corpus)
        _Build(self, corpus, folder, is_cache=True).run()
        return open_store(folder, verify=verify)

    @property
    def vocab_size(self) -> int:
        """Largest token id plus one; for ``"chars"`` use ``load_tokenizer(store).vocab_size``.

        Raises:
            ConfigError: If there is no tokenizer, or it cannot be loaded without a corpus.
        """
        return self._load().vocab_size

    @property
    def eos_id(self) -> int | None:
        """Id of the token that ends documents; None if there is none."""
        return self._load().resolve("eos", self.eos)

    @property
    def bos_id(self) -> int | None:
        """Id of the token that begins documents; None if there is none."""
        return self._load().resolve("bos", self.bos)

    def decode(self, tokens: Any) -> str:
        """Return the text of token ids; see ``Tokenizer.decode``."""
        return self._load().decode(tokens)

    @property
    def options(self) -> dict[str, Any]:
        """Options, except the tokenizer, on which tokens depend."""
        return {
            "text": self.text, "id": self.id, "fields": list(self.fields),
            "document": self.document, "format": self.format, "eos": self.eos, "bos": self.bos,
        }  # fmt: skip

    def _find_folder(self, location: str, corpus: Corpus) -> Path:
        """Return the folder of the tokens of a location: next to the data, else in the cache."""
        if isinstance(self.tokenizer, str | os.PathLike):
            name = os.path.expanduser(os.fspath(self.tokenizer))
            identity = os.path.abspath(name) if os.path.exists(name) else name
        else:
            identity = self._load().digest
        text = repr((location, identity, sorted(self.options.items())))
        name = f"text-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        if self.cache_dir is not None:
            return Path(self.cache_dir).expanduser().absolute() / name
        near, far = corpus.folder.absolute() / _INDEX_FOLDER / name, cache_folder() / "text" / name
        if read_record(near) is not None:
            return near
        is_writable = os.access(near.parent if near.parent.exists() else corpus.folder, os.W_OK)
        return near if is_writable and read_record(far) is None else far

    def _load(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ConfigError(
                "Text: `tokenizer` must be given. Pass `backend=Text(tokenizer='tokenizer.json')`, "
                "or 'bytes'; on the command line `--backend text:tokenizer=tokenizer.json`"
            )
        return load_tokenizer(self.tokenizer)


def tokenize(  # noqa: PLR0913
    source: str | os.PathLike[str],
    location: str | os.PathLike[str],
    *,
    tokenizer: Any,
    text: str = "text",
    id: str | None = None,
    fields: Iterable[str] = (),
    document: str = "file",
    format: str | None = None,
    eos: bool | int | str = False,
    bos: bool | int | str = False,
    num_workers: int | None = None,
    overwrite: bool = False,
    progress: Progress = None,
    remote: Any = None,
) -> SequenceStore:
    """Tokenize a corpus into a folder, and open it; ``open_store(location)`` finds it later.

    The folder is an Arrow store, which can be read without a plugin, with a copy of the tokenizer.
    After an interruption, also by ``kill -9``, the same call continues. Files do not depend on
    interruptions or on the number of processes. If the folder has tokens of the same tokenizer,
    corpus and options, they are opened without tokenizing.

    Args:
        source: A file, a folder (with subfolders), a glob, or a URL of these.
        location: Local folder for the tokens; created if needed.
        tokenizer: As in ``Text``.
        text: As in ``Text``.
        id: As in ``Text``.
        fields: As in ``Text``.
        document: As in ``Text``.
        format: As in ``Text``.
        eos: As in ``Text``.
        bos: As in ``Text``.
        num_workers: As in ``Text``.
        overwrite: Whether to replace tokens of another tokenizer, corpus or options; otherwise such
            tokens raise an error.
        progress: Whether to show a progress bar, or a function (sequences, bytes); None: a bar if
            standard error is a terminal.
        remote: Access to a URL, as in ``open_store``.

    Raises:
        ConfigError: If an argument is invalid, or, without ``overwrite``, the folder has other
            tokens.
        DataError: If a file is damaged, or changed while it was read.
        SeqDataError: If files at a URL cannot be fetched.
    """
    settings = Text(
        tokenizer, text=text, id=id, fields=tuple([fields] if isinstance(fields, str) else fields),
        document=document, format=format, eos=eos, bos=bos, num_workers=num_workers,
    )  # fmt: skip
    local = os.fspath(location)
    if local.startswith("file://"):
        local = unquote(local.removeprefix("file://"))
    if "://" in local:
        remedy = "Tokenize into a local folder, then call `write_store(url, store)`"
        needed = "a folder on this machine"
        raise ConfigError(must_be("tokenize: `location`", needed, "a URL", remedy))
    folder = Path(os.path.abspath(os.path.expanduser(local)))
    corpus = find_corpus(os.fspath(source), format, remote)
    build = _Build(settings, corpus, folder, is_cache=False, overwrite=overwrite, progress=progress)
    build.run()
    return open_store(folder)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Documents of a part, which are tokenized by a call; can be pickled.

    Attributes:
        root: The folder of the corpus.
        kind: The kind of its files.
        pieces: The pieces of files.
        columns: Columns of the documents.
        tokenizer: The arguments of ``load_saved``.
        eos: Id of the last token of a document; None: no such token.
        bos: Id of the first token; None: no such token.
        dtype: Dtype of tokens.
        threads: Number of threads that encode; 1 in worker processes.
    """

    root: Path
    kind: str
    pieces: tuple[Piece, ...]
    columns: Columns
    tokenizer: tuple[str, str, str, str | int, str | int]
    eos: int | None
    bos: int | None
    dtype: str
    threads: int

    def __call__(self) -> Iterator[dict[str, Any]]:
        """Yield the sequences of the part."""
        tokenizer = load_saved(*self.tokenizer)
        documents = read_documents(self.root, self.kind, self.pieces, self.columns)
        for batch in _iter_batches(documents):
            tokens, offsets = self._encode(tokenizer, batch)
            for at, document in enumerate(batch):
                row = {"id": document.id, FIELD: tokens[offsets[at] : offsets[at + 1]]}
                yield row | dict(zip(self.columns.fields, document.values, strict=True))

    def _encode(
        self, tokenizer: Tokenizer, batch: list[Document]
    ) -> tuple[NDArray[Any], list[int]]:
        """Return the concatenated tokens of documents, with special tokens, and their offsets."""
        texts = [document.text for document in batch]
        try:
            found, lengths = tokenizer.encode(texts, threads=self.threads)
        except ValueError:
            self._raise_first(tokenizer, batch)
            raise
        before, after = int(self.bos is not None), int(self.eos is not None)
        ends = np.cumsum(lengths + before + after)
        tokens = np.empty(int(ends[-1]), self.dtype)
        if not before and not after:
            tokens[:] = found
        else:
            is_text = np.ones(len(tokens), np.bool_)
            if self.eos is not None:
                is_text[ends - 1] = False
                tokens[ends - 1] = self.eos
            if self.bos is not None:
                begins = ends - lengths - before - after
                is_text[begins] = False
                tokens[begins] = self.bos
            tokens[is_text] = found
        return tokens, [0, *ends.tolist()]

    def _raise_first(self, tokenizer: Tokenizer, batch: list[Document]) -> None:
        """Raise the error of the first document that cannot be encoded, with its id."""
        for document in batch:
            try:
                tokenizer.encode([document.text], threads=1)
            except ValueError as error:
                raise DataLocation(dataset=str(self.root), key=document.id).make_error(
                    DecodeError, f"document {document.id!r} {error}"
                ) from error


def _iter_batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yield documents in lists of about the same size, each of which is encoded by one call."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= _BATCH_CHARACTERS or len(batch) == _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclass(frozen=True)
class _Build:
    """Tokenization of a corpus into a folder.

    Attributes:
        settings: The options.
        corpus: The files.
        folder: The folder of the tokens.
        is_cache: Whether tokens of another corpus or tokenizer are replaced with a warning.
        overwrite: Whether such tokens are replaced without a warning. If neither is set, they raise
            an error.
        progress: As in ``write_store``.
    """

    settings: Text
    corpus: Corpus
    folder: Path
    is_cache: bool
    overwrite: bool = False
    progress: Progress = None

    def run(self) -> None:
        """Tokenize the corpus, unless the folder has its tokens.

        Raises:
            ConfigError: If the folder holds other tokens that may not be replaced, or an option
                does not fit the corpus.
            DataError: If a file is damaged, or changed while it was read.
        """
        with self.corpus.explain():
            states = self.corpus.stat()
            if self._is_made(states):
                return
            with lock_folder(self.folder):
                if not self._is_made(states):  # another process has just made them
                    self._make(states)

    def _is_made(self, states: list[FileState]) -> bool:
        """Return whether the folder has the tokens of these files, by their sizes and times."""
        record = read_record(self.folder)
        if record is None or record.options != self.settings.options or record.states != states:
            return False
        name = self.settings.tokenizer
        is_fitted = name == _CHARS and record.tokenizer["name"] == _CHARS
        if not is_fitted and self._load_digest() != record.tokenizer["digest"]:
            return False
        return self._has_store(record)

    def _load_digest(self) -> str:
        return "" if self.settings.tokenizer == _CHARS else self.settings._load().digest

    def _has_store(self, record: Record) -> bool:
        """Return whether the folder has the store that a record describes."""
        if not (self.folder / _MANIFEST).exists():
            return False
        return open_store(self.folder).fingerprint == record.fingerprint

    def _make(self, states: list[FileState]) -> None:
        part_bytes = choose_part_bytes(states, PART_BYTES)
        settings = self.settings
        if settings.fields and self.corpus.kind == "text":
            must, remedy = "empty for plain text, which has no columns", "Leave it out"
            raise ConfigError(must_be("Text: `fields`", must, repr(list(settings.fields)), remedy))
        parts, digests = split_corpus(self.corpus, settings.document, settings.text, part_bytes)
        if not parts:
            raise ConfigError(
                f"corpus {str(self.corpus.root)!r}: must have at least one document, but is empty. "
                "Check the path"
            )
        tokenizer = self._load_tokenizer(parts)
        wanted = self._describe(tokenizer, states, digests)
        is_there = (self.folder / _MANIFEST).exists()
        if is_there and self._reuse(wanted):
            return
        pending = read_record(self.folder, PENDING)
        resume = pending is not None and pending.is_same(wanted)
        if pending is not None and not resume:
            _warn(
                f"{self.folder}: an interrupted run is started again: "
                f"{pending.describe_changes(wanted)}"
            )
        write_file(self.folder / wanted.tokenizer["file"], tokenizer.content)
        write_record(self.folder, wanted, PENDING)
        count = choose_workers(settings.num_workers, len(parts))
        replaces = is_there or self.overwrite or self.is_cache
        tasks = self._make_parts(parts, tokenizer, wanted, count)
        make = partial(self._write, tasks, resume, replaces)
        if count:
            with Processes(count) as executor:
                store = make(executor)
        else:
            store = make(None)
        self._finish(replace(wanted, fingerprint=store.fingerprint), states)

    def _write(
        self, parts: list[_Part], resume: bool, replaces: bool, executor: Any
    ) -> SequenceStore:
        return write_store(
            self.folder, parts, executor=executor, resume=resume, overwrite=replaces,
            progress=self.progress,
        )  # fmt: skip

    def _load_tokenizer(self, parts: list[tuple[Piece, ...]]) -> Tokenizer:
        if self.settings.tokenizer != _CHARS:
            return self.settings._load()
        texts = (
            document.text
            for pieces in parts
            for document in read_documents(
                self.corpus.root, self.corpus.kind, pieces, self._columns
            )
        )
        tokenizer = make_chars(texts)
        _warn(
            f"{self.corpus.root}: 'chars' numbers the {tokenizer.vocab_size - 2} characters of "
            "this corpus; the ids of another corpus may differ. To use the same ids there, pass "
            f"tokenizer={str(self.folder / name_copy(tokenizer))!r}"
        )
        return tokenizer

    @property
    def _columns(self) -> Columns:
        settings = self.settings
        return Columns(settings.text, settings.id, tuple(settings.fields), settings.document)

    def _describe(
        self, tokenizer: Tokenizer, states: list[FileState], digests: list[str]
    ) -> Record:
        settings = self.settings
        about = {
            "kind": tokenizer.kind, "name": tokenizer.name, "digest": tokenizer.digest,
            "eos": tokenizer.eos, "bos": tokenizer.bos, "file": name_copy(tokenizer),
            "eos_id": tokenizer.resolve("eos", settings.eos),
            "bos_id": tokenizer.resolve("bos", settings.bos),
            "vocab_size": tokenizer.vocab_size,
        }  # fmt: skip
        return Record(tokenizer=about, options=settings.options, states=states, digests=digests)

    def _reuse(self, wanted: Record) -> bool:
        """Return whether the store in the folder has the wanted tokens; if so, update its record.

        Raises:
            ConfigError: If it has other tokens, which may not be replaced.
        """
        record = read_record(self.folder)
        if record is not None and record.is_same(wanted) and self._has_store(record):
            write_record(self.folder, replace(wanted, fingerprint=record.fingerprint))
            return True
        if record is None:
            changes = "they have no record of their corpus"
        else:
            changes = record.describe_changes(wanted) or "its store was replaced"
        if not self.is_cache and not self.overwrite:
            raise ConfigError(
                f"{self.folder}: must be empty, or have the tokens of this tokenizer and corpus, "
                f"but has other tokens: {changes}. Choose another folder, or pass `overwrite=True`"
            )
        if self.is_cache:
            _warn(f"{self.folder}: tokenized again: {changes}")
        return False

    def _make_parts(
        self,
        parts: list[tuple[Piece, ...]],
        tokenizer: Tokenizer,
        wanted: Record,
        workers: int,
    ) -> list[_Part]:
        about = wanted.tokenizer
        path = str(self.folder / about["file"])
        saved = (path, tokenizer.kind, tokenizer.digest, tokenizer.eos, tokenizer.bos)
        return [
            _Part(
                root=self.corpus.root, kind=self.corpus.kind, pieces=pieces, columns=self._columns,
                tokenizer=saved, eos=about["eos_id"], bos=about["bos_id"],
                dtype=choose_dtype(tokenizer.vocab_size),
                threads=1 if workers else count_processors(),
            )
            for pieces in parts
        ]  # fmt: skip

    def _finish(self, record: Record, states: list[FileState]) -> None:
        """Write the record, unless the corpus has changed.

        Raises:
            DataError: If it has changed; the tokens are removed.
        """
        if self.corpus.stat() != states:
            for name in (_MANIFEST, PENDING, "part-*", "lengths-*"):
                for path in self.folder.glob(name):
                    path.unlink()
            raise DataLocation(dataset=str(self.corpus.root)).make_error(
                DataError,
                "must not change while it is tokenized, but files did. Tokenize again",
            )
        write_record(self.folder, record)
        (self.folder / PENDING).unlink(missing_ok=True)
        for path in self.folder.glob("tokenizer-*.*"):
            if path.name != record.tokenizer["file"]:
                path.unlink()


def choose_dtype(vocab_size: int) -> str:
    """Return the smallest dtype of token ids that torch has: uint8, uint16 or int32."""
    if vocab_size <= 1 << 8:
        return "uint8"
    return "uint16" if vocab_size <= 1 << 16 else "int32"


def _warn(text: str) -> None:
    warn(text)


__all__ = ["RECORD", "Text", "choose_dtype", "tokenize"]
