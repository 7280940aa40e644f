"""What the shards of a writing depend on, beside its sequences; another writing must not go on.

Place in the flow: the writer notes it in the folder aside, and compares it with what it finds
there. Reads: a file. Makes: an error, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from seqdata.errors import ConfigError
from seqdata.storage.digest_trailer import read_sealed, sealed
from seqdata.storage.writing.staging_dir import write_whole

AGAIN = "pass `resume`=False to begin anew"  # ends errors of what cannot be gone on with
_FILE = "scheme.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How sequences become shards.

    Attributes:
        axes: Field -> axis, as given.
        shard_bytes: Size from which on a shard is closed.
        key: The field of ids.
        algorithm: That checksums are computed by.
        parts: How many parts there are; None: one iterable.
    """

    axes: Mapping[str, str | None] | None
    shard_bytes: int
    key: str
    algorithm: str
    parts: int | None


def agree(root: Path, folder: Path, scheme: Scheme) -> None:
    """Note a scheme in a folder aside, or compare it with the one that is noted there.

    Raises:
        ConfigError: If it is another one, or the note of it is damaged.
    """
    must = json.loads(json.dumps({"version": _VERSION, **asdict(scheme)}))
    path = folder / _FILE
    if not path.exists():
        write_whole(path, sealed(json.dumps(must).encode(), _FILE))
        return
    noted = read_sealed(path)
    if noted is None:
        raise ConfigError(
            f"{path}: must be as the writer left it, but is damaged: nobody knows how its shards "
            f"were made. Restore it, or {AGAIN}"
        )
    found = json.loads(noted)
    for name, value in found.items():
        if name in must and must[name] != value:
            raise ConfigError(
                f"{root}: was begun with `{name}` {value!r}, must go on with it and not with "
                f"{must[name]!r}; pass the same, or {AGAIN.removeprefix('pass ')}"
            )
