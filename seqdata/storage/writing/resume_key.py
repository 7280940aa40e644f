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
from seqdata.storage.digest_trailer import add_digest, read_with_digest
from seqdata.storage.writing.staging_dir import write_atomically

RESTART_HINT = "pass `resume`=False to begin anew"  # ends errors of what cannot be gone on with
_FILE_NAME = "scheme.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeKey:
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


def check_resume_key(root: Path, folder: Path, resume_key: ResumeKey) -> None:
    """Note a scheme in a folder aside, or compare it with the one that is noted there.

    Raises:
        ConfigError: If it is another one, or the note of it is damaged.
    """
    expected = json.loads(json.dumps({"version": _VERSION, **asdict(resume_key)}))
    path = folder / _FILE_NAME
    if not path.exists():
        write_atomically(path, add_digest(json.dumps(expected).encode(), _FILE_NAME))
        return
    content = read_with_digest(path)
    if content is None:
        raise ConfigError(
            f"{path}: must be as the writer left it, but is damaged: nobody knows how its shards "
            f"were made. Restore it, or {RESTART_HINT}"
        )
    recorded = json.loads(content)
    for name, value in recorded.items():
        if name in expected and expected[name] != value:
            raise ConfigError(
                f"{root}: was begun with `{name}` {value!r}, must go on with it and not with "
                f"{expected[name]!r}; pass the same, or {RESTART_HINT.removeprefix('pass ')}"
            )
