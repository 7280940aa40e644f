"""Archives of Kaldi (``.ark``) and lists of them (``.scp``): features, read in place.

An entry of an archive has a name, a space, a NUL byte and a B, the kind of its values, their shape,
and the values.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from seqdata.backends import Extents, FileIndex, FormatBackend, RandomAccessFile
from seqdata.errors import ConfigError, DataError
from seqdata.protocols import Store
from seqdata_audio.manifests import read_pairs

_KINDS = {b"FM ": ("<f4", 2), b"DM ": ("<f8", 2), b"FV ": ("<f4", 1), b"DV ": ("<f8", 1)}
_COMPRESSED = (b"CM ", b"CM2", b"CM3")
_SIZES = {1: struct.Struct("<xi"), 2: struct.Struct("<xixi")}  # each after its number of bytes
_SOUND = (b"RIFF", b"RIFX")
_LONGEST_NAME = 4096


@dataclass(frozen=True)
class KaldiArchive:
    """Backend for archives of Kaldi; each entry is a sequence with its name as id.

    Field ``features``: float32 or float64, (T, columns) for matrices, (T,) for vectors, read in
    place. Compressed matrices, strings and audio in archives are refused. A list (``feats.scp``)
    selects the entries that it names, in its order; its paths are relative to the current folder,
    as in Kaldi, or else to the folder of the list.

    Examples:
        >>> store = open_store("raw_mfcc.1.ark")  # doctest: +SKIP
        >>> store = open_store("data/train/feats.scp")  # doctest: +SKIP
    """

    suffixes: ClassVar[tuple[str, ...]] = (".ark",)
    version: ClassVar[int] = 1

    def __call__(self, location: Any, **options: Any) -> Store:
        """Open archives, or those of a list; options are those of ``FormatBackend``.

        Raises:
            ConfigError: If there are no archives at the location, or an option is invalid.
            DataError: If an archive is damaged, or lacks an entry of the list.
        """
        if not _is_list(location):
            return FormatBackend(self)(location, **options)
        archives, keys = _read_list(location)
        store = FormatBackend(self)(archives, **options)
        number_of = {key: number for number, key in enumerate(store.keys(range(len(store))))}
        missing = [key for key in keys if key not in number_of]
        if missing:
            raise DataError.at(
                f"{location}: archives must hold its {len(keys)} entries, but {len(missing)} are "
                f"missing, {missing[0]!r} first. Restore the archives, or write the list again",
                file=os.fspath(location), sequence=missing[0],
            )  # fmt: skip
        return store.take([number_of[key] for key in keys])

    def build_index(self, location: Any, **options: Any) -> Mapping[str, Any]:
        """Make the index of archives; see ``FormatBackend``."""
        return FormatBackend(self).build_index(_find_archives(location), **options)

    def audit(
        self, location: str, *, shard: int | None, repair: bool, on_progress: Callable[[int], None]
    ) -> tuple[int, Iterator[Any]]:
        """Compare every byte of archives; see ``FormatBackend``."""
        return FormatBackend(self).audit(
            _find_archives(location), shard=shard, repair=repair, on_progress=on_progress
        )

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return the positions of the values of each entry.

        Raises:
            ValueError: If the file was cut off, or holds something else.
        """
        ids: list[str] = []
        begins: list[int] = []
        ends: list[int] = []
        forms: set[tuple[str, int]] = set()
        at = 0
        while at < file.size:
            name, at = _read_name(file, at)
            dtype, columns, rows, at = _read_sizes(file, name, at)
            end = at + rows * max(columns, 1) * np.dtype(dtype).itemsize
            if end > file.size:
                raise ValueError(
                    f"has {file.size} bytes, but {name!r} ends at byte {end}: it was cut off"
                )
            if rows:
                forms.add((dtype, columns))
            ids.append(name)
            begins.append(at)
            ends.append(end)
            at = end
        if len(forms) > 1:
            raise ValueError(
                "must hold values of one kind and width, but holds "
                + ", ".join(f"{dtype[1:]} ({columns})" for dtype, columns in sorted(forms))
            )
        dtype, columns = next(iter(forms), ("<f4", 0))
        shape = (columns,) if columns else ()
        features = Extents(np.array(begins, np.int64), np.array(ends, np.int64), dtype, shape)
        return FileIndex({"features": features}, ids)


def _is_list(location: Any) -> bool:
    return isinstance(location, str | os.PathLike) and os.fspath(location).endswith(".scp")


def _find_archives(location: Any) -> Any:
    return _read_list(location)[0] if _is_list(location) else location


def _read_list(location: str | os.PathLike[str]) -> tuple[str, list[str]]:
    """Return the location of the archives of a list, and the names of its entries.

    Raises:
        ConfigError: If it does not exist, or an entry is not a position in an archive.
        DataError: If a name occurs twice.
    """
    path = Path(location)
    entries = read_pairs(path, "the archives of features")
    archives: dict[str, None] = {}
    for key, entry in entries.items():
        name, colon, offset = entry.rpartition(":")
        if not colon or not offset.isdecimal() or not name.endswith(".ark"):
            raise ConfigError(
                f"{path}: {key!r} must be at `archive.ark:offset`, but is at {entry!r}. Write "
                f"the features to an archive: `copy-feats scp:{path.name} ark,scp:new.ark,new.scp`"
            )
        archives[name] = None
    if not archives:
        raise ConfigError(f"{path}: must name at least one entry, but is empty. Check the file")
    found = [name if os.path.exists(name) else str(path.parent / name) for name in archives]
    return "::".join(found), list(entries)


def _read_name(file: RandomAccessFile, at: int) -> tuple[str, int]:
    """Return the name of an entry, and the position after the mark of binary values."""
    head = file.read(at, at + _LONGEST_NAME)
    name, space, rest = head.partition(b" ")
    behind = at + len(name) + 1
    if not space or not name:
        raise ValueError(f"must have a name at byte {at}, but has none: it was cut off or damaged")
    if rest[:4] in _SOUND:
        raise ValueError(
            f"holds audio ({name.decode(errors='replace')!r}), but must hold features. Open the "
            "WAV files themselves, or unpack it with `wav-copy`"
        )
    if rest[:2] != b"\0B":
        raise ValueError(
            f"must hold binary values, but {name.decode(errors='replace')!r} does not. Write it "
            "again with `copy-feats ark:old.ark ark:new.ark`"
        )
    return name.decode(), behind + 2


def _read_sizes(file: RandomAccessFile, name: str, at: int) -> tuple[str, int, int, int]:
    """Return dtype, columns (0 for a vector), rows, and the position of the values of an entry."""
    kind = file.read(at, at + 3)
    if kind in _COMPRESSED:
        raise ValueError(
            f"holds compressed matrices ({name!r}), which cannot be read in place. Write it again "
            "with `copy-feats --compress=false ark:old.ark ark:new.ark`"
        )
    if kind not in _KINDS:
        raise ValueError(f"has {name!r} of the unknown kind {kind!r}: it was cut off or damaged")
    dtype, dimensions = _KINDS[kind]
    sizes = _SIZES[dimensions]
    raw = file.read(at + 3, at + 3 + sizes.size)
    if len(raw) < sizes.size or raw[0] != 4 or (dimensions == 2 and raw[5] != 4):
        raise ValueError(f"has no sizes of {name!r}: it was cut off or damaged")
    rows, columns = (*sizes.unpack(raw), 0)[:2]
    if rows < 0 or columns < 0:
        raise ValueError(f"has sizes of {name!r} that are negative: it is damaged")
    return dtype, columns, rows, at + 3 + sizes.size
