"""What faults are tried on: shards that we wrote, for the matrix of ``seqdata_testing.faults``.

``python -m seqdata_testing.faults --target seqdata_webdataset.faults:TAR`` runs it. Place in the
flow: beside the backend; nothing of the plugin imports it. Makes: data sets in folders.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.backends import FOLDER, IndexedStore, Remote, find_index, read_index
from seqdata_testing.faults.targets import VERIFY, Extent, FaultTarget, SavedFile
from seqdata_webdataset.kind import SUFFIX
from seqdata_webdataset.opening import open_webdataset
from seqdata_webdataset.sending import write_webdataset

_SHARD = 9_000  # bytes of a shard: a member takes a block for its header and one at least


def _write(location: str | Path, given: Sequence[Mapping[str, Any]]) -> None:
    write_webdataset(location, given, shard_bytes=_SHARD, progress=False)


def _open(folder: Path, verify: str) -> IndexedStore:
    return open_webdataset(folder, verify=verify, progress=False)


def _open_served(url: str, verify: str, remote: Remote) -> IndexedStore:
    return open_webdataset(url, verify=verify, remote=remote, progress=False)


def _shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*{SUFFIX}"))


def _values(folder: Path) -> list[Extent]:
    found: list[Extent] = []
    for number, name in enumerate(_shards(folder)):
        file = find_index(folder / name)
        if file is not None:
            index = read_index(str(folder), number, file)
            for one in index.members.values():
                both = np.stack([one.begins, one.sizes], axis=1).tolist()
                found += [(name, begin, size) for begin, size in both if size > 0]
    return sorted(found)


def _others(folder: Path) -> list[str]:
    return sorted(f"{FOLDER}/{path.name}" for path in (folder / FOLDER).iterdir())


def _write_counted(root: Path) -> Path:
    with tarfile.open(root / "x.tar", "w") as shard:
        for number in range(40):
            content = json.dumps(list(range(number))).encode()
            member = tarfile.TarInfo(f"u{number}.json")
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    _read_counted(root)
    (path,) = (root / FOLDER).glob("lengths-*")
    return path


def _read_counted(root: Path) -> Any:
    store = open_webdataset(root, schema={"json": "int64"}, index="build", progress=False)
    return store.lengths.tolist()


TAR = FaultTarget(
    name="tar", verify=VERIFY, write=_write, open=_open, served=_open_served, hits=SUFFIX,
    shards=_shards, values=_values, others=_others,
    kept=(SavedFile(name="counted lengths", write=_write_counted, read=_read_counted),),
)  # fmt: skip
"""Tar shards of ours, with their indexes."""
