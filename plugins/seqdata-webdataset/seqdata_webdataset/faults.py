"""The fault target of tar shards, for the matrix of ``seqdata_testing.faults``.

``python -m seqdata_testing.faults --target seqdata_webdataset.faults:TAR`` runs it. No module of
the plugin imports it.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.backends import INDEX_FOLDER, Remote, ShardStore, find_index, read_index
from seqdata_testing.faults.targets import VERIFY, Extent, FaultTarget, SavedFile
from seqdata_webdataset.indexed_format import SUFFIX
from seqdata_webdataset.opening import open_webdataset
from seqdata_webdataset.writing import write_webdataset

_SHARD_BYTES = (
    9_000  # bytes of a shard: a member takes a block for its header and at least one more
)


def _write(location: str | Path, sequences: Sequence[Mapping[str, Any]]) -> None:
    write_webdataset(location, sequences, shard_bytes=_SHARD_BYTES, progress=False)


def _open(folder: Path, verify: str) -> ShardStore:
    return open_webdataset(folder, verify=verify, progress=False)


def _open_served(url: str, verify: str, remote: Remote) -> ShardStore:
    return open_webdataset(url, verify=verify, remote=remote, progress=False)


def _list_shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*{SUFFIX}"))


def _list_extents(folder: Path) -> list[Extent]:
    found: list[Extent] = []
    for number, name in enumerate(_list_shards(folder)):
        file = find_index(folder / name)
        if file is not None:
            index = read_index(str(folder), number, file)
            for members in index.members.values():
                extents = np.stack([members.begins, members.sizes], axis=1).tolist()
                found += [(name, begin, size) for begin, size in extents if size > 0]
    return sorted(found)


def _list_index_files(folder: Path) -> list[str]:
    return sorted(f"{INDEX_FOLDER}/{path.name}" for path in (folder / INDEX_FOLDER).iterdir())


def _write_with_lengths(root: Path) -> Path:
    with tarfile.open(root / "x.tar", "w") as shard:
        for number in range(40):
            content = json.dumps(list(range(number))).encode()
            member = tarfile.TarInfo(f"u{number}.json")
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    _read_lengths(root)
    (path,) = (root / INDEX_FOLDER).glob("lengths-*")
    return path


def _read_lengths(root: Path) -> Any:
    store = open_webdataset(root, schema={"json": "int64"}, index="build", progress=False)
    return store.lengths.tolist()


TAR = FaultTarget(
    name="tar", verify=VERIFY, write=_write, open=_open, served=_open_served, hits=SUFFIX,
    shards=_list_shards, values=_list_extents, others=_list_index_files,
    saved_files=(SavedFile(name="counted lengths", write=_write_with_lengths, read=_read_lengths),),
)  # fmt: skip
"""Tar shards with their indexes."""
