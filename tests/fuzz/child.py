"""Open and read mutated files one after the other, with a cap on memory; one line for each.

Usage: python child.py SEEDS SCRATCH FIRST LAST CAP
"""

import json
import os
import resource
import sys
import traceback
import warnings
from pathlib import Path

import cases
import numpy as np

from seqdata.api import open_store
from seqdata.errors import SeqDataError
from seqdata.storage.text_bytes import SupportsRawTexts

MAPPED = ("VmSize", "VmHWM")


def memory():
    """Return the bytes that are mapped now, and the most that were resident."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(lines[name].split()[0]) << 10 for name in MAPPED]


def read_all(location):
    """Read all that a store has; gives the texts and numbers of each field."""
    store = open_store(location)
    content = {name: [] for name in store.fields}
    ids = []
    for axis, lengths in store.lengths_of.items():
        content[f"lengths of {axis}"] = np.asarray(lengths).tolist()
    axis, lengths = next(iter(store.lengths_of.items()))
    for first in range(0, len(store), 8):
        numbers = np.arange(first, min(first + 8, len(store)))
        spans = np.stack([numbers, 0 * numbers, lengths[numbers].astype(np.int64)], axis=1)
        for name, column in store.read(spans, list(store.fields), axis=axis).items():
            if isinstance(column, list):
                content[name] += column
                continue
            bounds = np.append(0, np.cumsum(column.lengths))
            out = np.empty((int(bounds[-1]), *column.shape), column.dtype)
            column.fill(out, bounds, None)
            content[name] += [out.tobytes()]
            column[0]
        ids += store.keys(numbers)
        if isinstance(store, SupportsRawTexts):
            store.raw_texts(None, numbers)
    return content, ids


def outcome(location):
    try:
        return "data", read_all(location)
    except SeqDataError as error:
        return type(error).__name__, str(error)
    except BaseException:
        return "bad", traceback.format_exc()


def warm_up():
    """Import what opening imports, so that it does not count."""
    from pyarrow import parquet  # noqa: F401

    import seqdata.storage.arrow.store
    import seqdata.storage.foreign.store  # noqa: F401


def main(seeds, scratch, first, last, cap):
    warnings.simplefilter("ignore")
    seeds, scratch = Path(seeds), Path(scratch)
    wells = {kind: read_all(seeds / kind) for kind in cases.KINDS}
    size, resident = memory()
    resource.setrlimit(resource.RLIMIT_AS, (size + int(cap), size + int(cap)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(int(first), int(last)):
        kind, name, done = cases.mutated(seeds, number, scratch / "case")
        how, told = outcome(scratch / "case")
        if kind == "own" and how == "data" and told != wells[kind]:
            how, told = "bad", f"wrong data, silently: {differing(told, wells[kind])}"
        line = {
            "case": number, "kind": kind, "file": name, "done": done, "outcome": how,
            "told": told if how != "data" else "", "rss": memory()[1] - resident,
        }  # fmt: skip
        os.write(1, (json.dumps(line) + "\n").encode())


def differing(found, well):
    return [name for name in well[0] if found[0].get(name) != well[0][name]] or "ids"


if __name__ == "__main__":
    main(*sys.argv[1:])
