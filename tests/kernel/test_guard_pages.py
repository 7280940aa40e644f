"""The compiled kernel reads nothing outside of its buffers: they end where memory ends."""

import subprocess
import sys

import pytest

from seqdata_testing.waiting import patient

GUARDED = """
import ctypes, mmap, zlib
import numpy as np
from seqdata.kernel import _fill

libc = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE

def guarded(content):
    '''Give the bytes right before a page that may not be touched.'''
    pages = -(-max(len(content), 1) // PAGE)
    area = mmap.mmap(-1, (pages + 1) * PAGE)
    whole = np.frombuffer(area, dtype=np.uint8)
    begin = pages * PAGE - len(content)
    whole[begin : pages * PAGE] = np.frombuffer(content, dtype=np.uint8)
    address = whole.ctypes.data + pages * PAGE
    if libc.mprotect(ctypes.c_void_p(address), PAGE, 0):
        raise OSError(ctypes.get_errno())
    return whole[begin : pages * PAGE]

random = np.random.default_rng(0)
filled = 0
for _ in range(1_500):
    width = int(random.integers(1, 5))
    rows, count, n = int(random.integers(1, 40)), int(random.integers(1, 5)), 4
    offsets = np.sort(random.integers(0, rows + 1, count + 1))
    if random.random() < 0.3:
        offsets[random.integers(0, count + 1)] = random.integers(-5, rows + 5)
    starts = np.array([0, count])
    spans = np.stack([
        random.integers(0, count, n), random.integers(0, 4, n), random.integers(3, 9, n)
    ], axis=1)
    if random.random() < 0.3:
        spans[random.integers(0, n), random.integers(0, 3)] = random.integers(-9, 60)
    lengths = np.maximum(spans[:, 2] - spans[:, 1], 0)
    bounds = np.concatenate([[0], np.cumsum(lengths + random.integers(0, 3, n))])
    if random.random() < 0.1:
        bounds[random.integers(0, n + 1)] += random.integers(-9, 9)
    values, checks, block = random.bytes(rows * width), None, int(random.integers(1, 9))
    if random.random() < 0.7:
        sizes = np.maximum(np.diff(offsets), 0) * width
        firsts = np.concatenate([[0], np.cumsum(np.maximum(1, -(-sizes // block)))])
        sums = np.zeros(firsts[-1], np.uint32)
        for i, (begin, size) in enumerate(zip(offsets[:-1] * width, sizes)):
            for k in range(firsts[i + 1] - firsts[i]):
                at = int(begin) + k * block
                end = int(begin) + min(int(size), (k + 1) * block)
                sums[firsts[i] + k] = zlib.crc32(values[max(0, at) : max(0, end)])
        if random.random() < 0.3:
            firsts[random.integers(0, count + 1)] = random.integers(-5, 60)
        bits = guarded(bytes(-(-(len(sums) + 3) // 8))) if random.random() < 0.6 else None
        checks = (
            "crc32", block, (guarded(sums.tobytes()),), (guarded(firsts.tobytes()),), bits, (3,),
            guarded(np.diff(offsets).astype(np.uint32).tobytes()),
        )
    source = _fill.source(
        (guarded(values),),
        ((guarded(offsets[:-1].tobytes()), guarded(offsets[1:].tobytes())),),
        guarded(starts.tobytes()), width, checks,
    )
    out = guarded(bytes(max(1, int(lengths.sum() + 8) * width)))
    padding = random.bytes(width)
    try:
        filled += _fill.fill(
            source, guarded(spans.tobytes()), guarded(bounds.tobytes()), out, padding
        ) == -1
    except ValueError:
        pass
print(filled)
"""


@pytest.mark.slow
def test_fill_stays_inside_of_buffers_that_end_where_memory_ends():
    pytest.importorskip("seqdata.kernel._fill")
    done = subprocess.run(
        [sys.executable, "-c", GUARDED],
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(),
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50  # the good ones were really filled
