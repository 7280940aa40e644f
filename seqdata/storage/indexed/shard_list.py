"""The list of all shards of a writer, next to their indexes: the last file that it writes.

It detects shards that are missing from a folder, and indexes of an older write. Foreign shards have
no list.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqdata.errors import CorruptShardError, UnsafeContentError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.shard_index import INVALID_JSON

SHARD_LIST = "shards.json"
"""Its name in the folder of indexes."""
_VERSION = 1
_LEADS_ELSEWHERE = re.compile(r"(^|/)\.{0,2}(/|$)|^[A-Za-z]:|[\\\x00-\x1f\x7f-\x9f]")
DeclaredFields = Mapping[str, tuple[str, str, tuple[int, ...], str | None]]


@dataclass(frozen=True, slots=True, eq=False)
class ListedShard:
    """The entry of one shard in a list.

    Attributes:
        sha256: Digest of the shard.
        declared: Extension -> (name, dtype, shape, axis) of its field.
    """

    sha256: str
    declared: DeclaredFields


def dump_list(shards: Sequence[tuple[str, str]], declared: DeclaredFields) -> bytes:
    """Return the content of a list file.

    Args:
        shards: Name and sha256 of each, in order.
        declared: Extension -> (name, dtype, shape, axis) of its field.
    """
    fields = {name: list(facts_of_field) for name, facts_of_field in sorted(declared.items())}
    facts = {"version": _VERSION, "fields": fields, "shards": [list(shard) for shard in shards]}
    seal = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return json.dumps({"seal": seal, **facts}, indent=1).encode() + b"\n"


def load_list(content: bytes, dataset: str) -> dict[str, ListedShard]:
    """Parse a list file: name -> shard, in order.

    Args:
        content: Its content.
        dataset: The shards' folder, for errors.

    Raises:
        CorruptShardError: If it is damaged.
        UnsafeContentError: If a name leads out of the folder: indexes are written by that name.
    """
    try:
        facts = json.loads(content)
        declared = {
            name: _parse_field(facts_of_field) for name, facts_of_field in facts["fields"].items()
        }
        shards = [(str(name), str(sha256)) for name, sha256 in facts["shards"]]
        is_intact = dump_list(shards, declared) == content
        state = f"of version {facts['version']!r}" if facts["version"] != _VERSION else "damaged"
    except INVALID_JSON:
        is_intact, state = False, "damaged"
    if not is_intact:
        raise DataLocation(dataset=dataset, file=SHARD_LIST).make_error(
            CorruptShardError,
            f"must be unchanged since it was written, but is {state}. Restore it, or, if shards "
            "were replaced, remove it and rebuild their indexes with `seqdata index --rebuild`",
        )
    for name in (name for name, _ in shards if _LEADS_ELSEWHERE.search(name)):
        raise DataLocation(dataset=dataset, file=SHARD_LIST).make_error(
            UnsafeContentError,
            "must name shards by their paths below the folder, without '..', '\\' and control "
            f"characters, but names {name!r}. Do not use this data, or remove the list",
        )
    return {name: ListedShard(sha256, declared) for name, sha256 in shards}


def _parse_field(facts: Any) -> tuple[str, str, tuple[int, ...], str | None]:
    name, dtype, shape, axis = facts
    return str(name), str(dtype), tuple(map(int, shape)), axis
