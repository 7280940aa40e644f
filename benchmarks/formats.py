"""Formats of the packages: opening, indexing, and batches next to peers.

    python benchmarks/formats.py [--quick] [--rounds N] [--only arrays|frames|text]

The same documents (uint16 tokens, median 1,000) as an Arrow store and as ``.bin`` and ``.idx`` of
Megatron: lanes of 64 x 512 and packed rows of 4,096 from each, in processes of their own, in turns.
Then how long ``open_store`` takes for 10^9 tokens of both kinds of token files (files with holes:
no token is read), and for a folder of 10^5 wav files that has no index yet. Then batches of 64
windows of 2 s of 128 channels at 256 Hz from EDF files, beside mne (windows read one by one), where
it is installed. First windows of HDF5: mapped next to the Arrow store, and gzip chunks next to a
DataLoader that keeps its handles. Before all a corpus of JSON lines, tokenized next to the
tokenizer's own ``encode_batch``. Windows of a table of the size of M5.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import tempfile
import time
import wave
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import frames_windows
import hdf5_windows
import numpy as np
import text_corpus
from common import Cost, machine, running, spread
from rich.console import Console
from rich.table import Table
from samples import CHUNK, LANES, Samples, documents

from seqdata.api import open_store, write_store
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT

ARROW, MEGATRON = "arrow", "tokens"
FLOOR = 0.95  # times as fast as the Arrow store
POLICIES = {
    "lanes": TBPTT(LANES, CHUNK, continuous=True),
    "packed": Packed(16, 4096, too_long="split"),
}
OPEN_MOST, INDEX_MOST = 0.050, 20.0  # seconds
WAV_SAMPLES, WAVS_IN_FOLDER = 400, 1000
EEG_CHANNELS, EEG_RATE, WINDOW_MOST = 128, 256, 100.0  # microseconds a window


def write_megatron(path: Path, lengths: np.ndarray, values: np.ndarray | None) -> None:
    """Write ``.bin`` and ``.idx``; without values, the file has a hole of their size."""
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * 2
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(lengths), len(lengths) + 1)
    tables = (lengths.astype("<i4"), begins.astype("<i8"), np.arange(len(lengths) + 1, dtype="<i8"))
    path.with_suffix(".idx").write_bytes(head + b"".join(table.tobytes() for table in tables))
    if values is None:
        with path.open("wb") as file:
            file.truncate(int(lengths.sum()) * 2)
    else:
        values.astype("<u2").tofile(path)


def batches(location: str, kind: str) -> Generator[Any, None, None]:
    """Batches of a store, epoch after epoch."""
    from seqdata.loading.loader import Loader

    loader = Loader(location, POLICIES[kind], prefetch=0)
    while True:
        yield from loader


def measure_batches(root: Path, count: int, rounds: int) -> dict[tuple[str, str], list[Cost]]:
    """Draw batches of both stores under both policies in turn, ``rounds`` times and once before."""
    samples = documents(count)
    samples = Samples(samples.values.astype(np.uint16), samples.offsets)
    write_store(root / ARROW, ({"tokens": row["x"]} for row in samples.dicts()), progress=False)
    write_megatron(root / "corpus.bin", np.diff(samples.offsets), samples.values)
    makers = {
        (kind, store): partial(batches, str(root / location), kind)
        for kind in POLICIES
        for store, location in ((ARROW, ARROW), (MEGATRON, "corpus.bin"))
    }
    times: dict[tuple[str, str], list[Cost]] = {name: [] for name in makers}
    with running(makers) as runners:
        for number in range(rounds + 1):
            for name, runner in runners.items():
                cost = runner.draw(1024)
                if number:  # the first time maps the files
                    times[name].append(cost)
    return times


def write_wavs(folder: Path, count: int) -> None:
    """Write mono files of 16 bits, 1,000 in a folder."""
    samples = np.arange(WAV_SAMPLES, dtype="<i2").tobytes()
    for number in range(count):
        path = folder / f"{number // WAVS_IN_FOLDER:03d}" / f"{number:06d}.wav"
        if number % WAVS_IN_FOLDER == 0:
            path.parent.mkdir(parents=True)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(samples)


def write_edf(path: Path, seconds_: int, seed: int) -> None:
    """Write an EDF file of 128 channels at 256 Hz, in records of a second."""
    rows = (("EEG {at}", 16), ("", 80), ("uV", 8), ("-400", 8), ("400", 8), ("-32768", 8),
            ("32767", 8), ("", 80), (str(EEG_RATE), 8), ("", 32))  # fmt: skip
    fields = [text.format(at=at).ljust(width)[:width] for text, width in rows
              for at in range(EEG_CHANNELS)]  # fmt: skip
    size = 256 * (EEG_CHANNELS + 1)
    head = [("0", 8), ("X", 80), ("X", 80), ("01.01.20", 8), ("00.00.00", 8), (str(size), 8),
            ("", 44), (str(seconds_), 8), ("1", 8), (str(EEG_CHANNELS), 4)]  # fmt: skip
    text = "".join(value.ljust(width) for value, width in head) + "".join(fields)
    random = np.random.default_rng(seed)
    samples = random.integers(-30_000, 30_000, seconds_ * EEG_CHANNELS * EEG_RATE)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() + samples.astype("<i2").tobytes())


def measure_windows(folder: Path, seconds_: int, rounds: int) -> dict[str, list[float]]:
    """Return microseconds a window of ours and of mne, in turns, after a round that maps files."""
    from seqdata_biosignals import Biosignals

    for number in range(4):
        write_edf(folder / f"{number}.edf", seconds_, number)
    store = open_store(folder, backend=Biosignals())
    length = 2 * EEG_RATE
    random = np.random.default_rng(0)
    raws = open_with_mne(sorted(folder.glob("*.edf")))
    times: dict[str, list[float]] = {"seqdata": [], "mne": []} if raws else {"seqdata": []}
    for number in range(rounds + 1):
        spans = np.zeros((64, 3), np.int64)
        spans[:, 0] = random.integers(0, 4, 64)
        spans[:, 1] = random.integers(0, (seconds_ - 2) * EEG_RATE, 64)
        spans[:, 2] = spans[:, 1] + length
        taken = {"seqdata": seconds(lambda spans=spans: read_windows(store, spans))}
        if raws:
            taken["mne"] = seconds(lambda spans=spans: read_by_mne(raws, spans))
        for name, each in taken.items() if number else ():
            times[name].append(each / 64 * 1e6)
    return times


def read_windows(store: Any, spans: np.ndarray) -> np.ndarray:
    """Return the windows of spans, float32 (n, T, channels)."""
    column = store.read(spans, ["signal"])["signal"]
    length = int(spans[0, 2] - spans[0, 1])
    out = np.empty((len(spans) * length, *column.shape), np.float32)
    column.fill(out, np.arange(len(spans) + 1) * length, None)
    return out.reshape(len(spans), length, -1)


def open_with_mne(paths: list[Path]) -> list[Any]:
    """Return mne's recordings; none where it is not installed."""
    try:
        import mne
    except ImportError:
        return []
    return [mne.io.read_raw_edf(path, verbose="ERROR") for path in paths]


def read_by_mne(raws: list[Any], spans: np.ndarray) -> np.ndarray:
    """Return the windows of spans as a loop over mne's recordings reads them."""
    found = [raws[number][:, start:stop][0].T for number, start, stop in spans.tolist()]
    return np.stack(found).astype(np.float32)


def seconds(action: Callable[[], Any]) -> float:
    """Return how long an action takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def show_windows(console: Console, times: dict[str, list[float]]) -> None:
    """Print what a window takes, and the ratio to mne's."""
    ours = statistics.median(times["seqdata"])
    met = "met" if ours <= WINDOW_MOST else "MISSED"
    text = f"EDF, windows of 2 s of {EEG_CHANNELS} channels: {spread(times['seqdata'])} us "
    console.print(f"{text}(best {min(times['seqdata']):.0f}; aim {WINDOW_MOST:.0f}: {met})")
    if "mne" in times:
        ratio = statistics.median(times["mne"]) / ours
        console.print(f"as a loop over mne reads them: {spread(times['mne'])} us, {ratio:.1f}x")


def index_wavs(console: Console, folder: Path, share: int) -> None:
    """Index files of sound, and open them again."""
    count = 10**5 // share
    write_wavs(folder, count)
    taken = seconds(lambda: open_store(folder))
    met = "met" if taken <= INDEX_MOST / share else "MISSED"
    console.print(f"{count} wav files indexed in {taken:.1f} s (aim {INDEX_MOST / share}: {met})")
    again = seconds(lambda: open_store(folder))
    console.print(f"opened again in {again * 1e3:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="an eighth of the tokens and files")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--only", choices=("arrays", "frames", "text"), help="one of them alone")
    options = parser.parse_args()
    console = Console(width=120, soft_wrap=True)
    console.print(machine())
    share = 8 if options.quick else 1
    if options.only in (None, "text"):
        with tempfile.TemporaryDirectory() as folder:
            size = (40 << 20) // share
            text_corpus.report(console, *text_corpus.measure(Path(folder), size, options.rounds))
    if options.only in (None, "frames"):
        with tempfile.TemporaryDirectory() as folder:
            series = frames_windows.SERIES // share
            frames_windows.report(console, Path(folder), series, options.rounds, 64)
    if options.only in ("frames", "text"):
        return
    with tempfile.TemporaryDirectory() as folder:
        steps, draws = hdf5_windows.STEPS // share, 64 // share
        found = hdf5_windows.measure(Path(folder), steps, options.rounds, draws)
        hdf5_windows.report(console, found)
    if options.only:
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        times = measure_batches(root, (1 << 26) // share, options.rounds)
        table = Table("policy", "store", "us/batch", "CPU us/batch", "Arrow's time over it")
        for (kind, store), costs in times.items():
            ours, arrow = (
                statistics.median(cost.wall for cost in times[kind, name])
                for name in (store, ARROW)
            )
            met = "" if store == ARROW else " (met)" if arrow / ours >= FLOOR else " (MISSED)"
            table.add_row(
                kind, store, spread([cost.wall for cost in costs], "{:.1f}"),
                spread([cost.cpu for cost in costs], "{:.1f}"), f"{arrow / ours:.2f}x{met}",
            )  # fmt: skip
        console.print(table)
        for name, count in (("10^6 documents", 10**6), ("1 document", 1)):
            path = root / f"open-{count}.bin"
            write_megatron(path, np.full(count, 10**9 // count), None)
            first = seconds(lambda path=path: open_store(path))
            again = [seconds(lambda path=path: open_store(path)) for _ in range(options.rounds)]
            met = "met" if statistics.median(again) <= OPEN_MOST else "MISSED"
            console.print(
                f"10^9 tokens in {name}: first {first * 1e3:.0f} ms, then "
                f"{spread([1e3 * taken for taken in again])} ms (aim {OPEN_MOST * 1e3:.0f}: {met})"
            )
        index_wavs(console, root / "wavs", share)
        show_windows(console, measure_windows(root / "eeg", 120, 10 * options.rounds))
    console.print(machine())


if __name__ == "__main__":
    main()
