"""The list of all shards that a writer made, beside their indexes: the last file that it writes.

Without it, a shard that is gone from a folder, or an index of an older write, could not be told. Of
shards that others wrote there is none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqdata.errors import CorruptShardError
from seqdata.storage.data_location import DataLocation

SHARD_LIST = "shards.json"
"""Its name in the folder of indexes."""
_VERSION = 1
DeclaredFields = Mapping[str, tuple[str, str, tuple[int, ...], str | None]]


@dataclass(frozen=True, slots=True, eq=False)
class ListedShard:
    """What a list says of one shard.

    Attributes:
        sha256: Of the shard.
        declared: Extension -> (name, dtype, shape, axis) of its field.
    """

    sha256: str
    declared: DeclaredFields


def dump_list(shards: Sequence[tuple[str, str]], declared: DeclaredFields) -> bytes:
    """Return the file of a list.

    Args:
        shards: Name and sha256 of each, in order.
        declared: Extension -> (name, dtype, shape, axis) of its field.
    """
    fields = {name: list(one) for name, one in sorted(declared.items())}
    facts = {"version": _VERSION, "fields": fields, "shards": [list(one) for one in shards]}
    seal = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return json.dumps({"seal": seal, **facts}, indent=1).encode() + b"\n"


def load_list(content: bytes, dataset: str) -> dict[str, ListedShard]:
    """Read the file of a list: name -> shard, in order.

    Args:
        content: All of it.
        dataset: The shards' folder, for errors.

    Raises:
        CorruptShardError: If it is not as it was written.
    """
    try:
        facts = json.loads(content)
        declared = {name: _field(one) for name, one in facts["fields"].items()}
        shards = [(str(name), str(sha256)) for name, sha256 in facts["shards"]]
        whole = dump_list(shards, declared) == content
        said = f"of version {facts['version']!r}" if facts["version"] != _VERSION else "damaged"
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        whole, said = False, "damaged"
    if not whole:
        raise DataLocation(dataset=dataset, file=SHARD_LIST).make_error(
            CorruptShardError,
            f"is {said}, must be as it was written; restore it, or, if shards were replaced, "
            "remove it and make their indexes anew with `seqdata index --anew`",
        )
    return {name: ListedShard(sha256, declared) for name, sha256 in shards}


def _field(one: Any) -> tuple[str, str, tuple[int, ...], str | None]:
    name, dtype, shape, axis = one
    return str(name), str(dtype), tuple(map(int, shape)), axis
