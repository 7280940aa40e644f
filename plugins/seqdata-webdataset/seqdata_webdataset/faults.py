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

from seqdata import Remote
from seqdata.backends import DataLocation, ShardStore
from seqdata_testing.faults.targets import VERIFY, Extent, FaultTarget, SavedFile
from seqdata_webdataset.backend import open_webdataset, write_webdataset
from seqdata_webdataset.grouping import group_samples
from seqdata_webdataset.indexed_format import SUFFIX

_SHARD_BYTES = 9_000  # a member takes a block for its header and at least one more
_INDEX_FOLDER = "seqdata-index"


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
    for name in _list_shards(folder):
        samples = group_samples((folder / name).read_bytes(), DataLocation(dataset=str(folder)))
        for members in samples.members.values():
            extents = zip(members.begins, members.sizes, strict=True)
            found += [(name, begin, size) for begin, size in extents if size > 0]
    return sorted(found)


def _list_index_files(folder: Path) -> list[str]:
    return sorted(f"{_INDEX_FOLDER}/{path.name}" for path in (folder / _INDEX_FOLDER).iterdir())


def _write_with_lengths(root: Path) -> Path:
    with tarfile.open(root / "x.tar", "w") as shard:
        for number in range(40):
            content = json.dumps(list(range(number))).encode()
            member = tarfile.TarInfo(f"u{number}.json")
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    _read_lengths(root)
    (path,) = (root / _INDEX_FOLDER).glob("lengths-*")
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
