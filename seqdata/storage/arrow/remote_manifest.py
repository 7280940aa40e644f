"""Reading the manifest of a remote store."""

from __future__ import annotations

from seqdata.errors import MissingShardError
from seqdata.storage.arrow.manifest import MANIFEST, Manifest
from seqdata.storage.arrow.manifest_parser import check_manifest_size, parse_manifest
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.transport import RemoteFiles


def read_manifest(files: RemoteFiles) -> Manifest:
    """Return the manifest of a remote store.

    Raises:
        MissingShardError: If it is not there.
        RemoteReadError: If it cannot be read.
        DataError: If it is invalid.
    """
    location = DataLocation(dataset=files.location, file=MANIFEST, file_kind="manifest")
    stat = files.stat(MANIFEST, location)
    check_manifest_size(stat.size, location)
    return parse_manifest(files.read(MANIFEST, 0, stat.size, location), location)


def file_exists(files: RemoteFiles, name: str) -> bool:
    """Return whether a file exists.

    Raises:
        RemoteReadError: If the request fails.
    """
    try:
        files.stat(name)
    except MissingShardError:
        return False
    return True
