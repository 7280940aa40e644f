"""A cache in the folder of a test, and what lies in it."""

import contextlib

from seqdata import Remote
from seqdata.storage.remote.file_cache import make_cache
from seqdata.storage.remote.transport import make_remote_files

SIZE = 1 << 20


def cache_at(web, tmp_path, **options):
    return make_cache(make_remote_files(web.url, Remote(cache_dir=tmp_path / "cache", **options)))


def folder_in(tmp_path):
    return tmp_path / "cache" / "seqdata-shards"


def files_in(tmp_path):
    """Name and size of what is in the cache; what is removed meanwhile is not."""
    found = {}
    for one in folder_in(tmp_path).iterdir():
        if one.name not in (".lock", "CACHEDIR.TAG") and one.suffix != ".sha256":
            with contextlib.suppress(FileNotFoundError):
                found[one.name] = one.stat().st_size
    return found


def first(held):
    return memoryview(held.mapping)[0]
