"""A process that fills a cache, to be killed or raced: filling.py URL CACHE NAMES MOST."""

import sys

from seqdata import Remote
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.transport import make_remote_files

if __name__ == "__main__":
    url, folder, names, most = sys.argv[1:]
    cache = make_cache(make_remote_files(url, Remote(cache_dir=folder, cache_bytes=int(most))))
    print("ready", flush=True)
    sys.stdin.readline()
    for name in names.split(","):
        held = cache.acquire(CacheRequest(name))
        content = bytes(memoryview(held.mapping))
        print(name, content[0], len(content), len(set(content)), flush=True)
        del held
