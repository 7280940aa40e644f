"""Which of our files and functions a piece of work enters: what a reader has to follow."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

from seqdata import Remote, open_store, write_store

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = (str(ROOT / "seqdata"), str(ROOT / "plugins"), str(ROOT / "models"))


class Flow:
    """The functions of ours that a call entered, in order of their first entry."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], None] = {}

    @property
    def files(self) -> list[str]:
        """Paths below the root of the repository, in order of their first entry."""
        return list(dict.fromkeys(file for file, _ in self.functions))

    def see(self, frame: Any, event: str, _: Any) -> None:
        """Note a function that is entered; for ``sys.setprofile``."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(LIBRARY):
            file = str(Path(code.co_filename).relative_to(ROOT))
            self.functions[file, code.co_qualname] = None


def follow(work: Callable[[], object]) -> Flow:
    """Call ``work`` and return what it entered in this thread."""
    flow = Flow()
    before = sys.getprofile()
    sys.setprofile(flow.see)
    try:
        work()
    finally:
        sys.setprofile(before)
    return flow


def write_remote(url: str, folder: Path, format: str) -> Any:
    """Write some sequences to a URL and return their store, read by ranges."""
    rng = np.random.default_rng(0)
    rows = [{"x": rng.normal(size=(i % 40 + 5, 4)).astype("f4"), "y": i % 3} for i in range(400)]
    write_store(folder / "local", rows, format=format)
    files = fsspec.filesystem("memory")
    files.put(str(folder / "local"), url, recursive=True)
    return open_store(url, remote=Remote(how="ranges", gap=0, cache_dir=str(folder / "cache")))


def later_batch(batches: Iterator[Any], number: int = 3) -> Flow:
    """Return what one batch enters, once first ones have opened what stays open."""
    for _ in range(number):
        next(batches)
    return follow(lambda: next(batches))
