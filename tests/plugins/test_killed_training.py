"""Data of every package: a training run that is killed in mid-epoch resumes at the next batch."""

import importlib.util
import json
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from seqdata import Loader, open_store
from seqdata.cli.app import app
from seqdata_testing.waiting import patient
from tests.plugins import killed_training
from tests.preloaded import python

PLUGINS = Path(__file__).parents[2] / "plugins"
KILLED_AT = 8  # of 2 x 5 steps: in the second epoch, one step after a checkpoint
LENGTHS = (3, 40, 9, 17, 2, 31, 8, 25, 5, 12)


def load(path: str):
    """Import a module of samples of a package's tests, which are no package."""
    name = f"killed_{path.replace('/', '_').removesuffix('.py')}"
    spec = importlib.util.spec_from_file_location(name, PLUGINS / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_rows():
    rng = np.random.default_rng(4)
    return [
        {
            "id": f"r{number}",
            "frames": rng.normal(size=(length, 3)).astype(np.float32),
            "age": np.int64(number),
        }
        for number, length in enumerate(LENGTHS)
    ]


def write_arrays(kind, folder):
    samples = load("seqdata-arrays/tests/arrays_samples.py")
    if kind == "zarr":
        return {"train": str(samples.write_zarr(folder / "x.zarr", make_rows(), chunk=8))}
    options = {"chunks": 8, "compression": "gzip"} if kind == "hdf5-gzip" else {}
    return {"train": str(samples.write_hdf5(folder / "x.h5", make_rows(), **options))}


def write_audio(folder):
    soundfile = pytest.importorskip("soundfile")
    rng = np.random.default_rng(4)
    for number, length in enumerate(LENGTHS):
        suffix = ("wav", "flac")[number % 2]
        path = folder / f"speech/r{number}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, rng.uniform(-1, 1, 160 * length), 16_000)
    return {"train": str(folder / "speech")}


def write_biosignals(folder):
    made = load("seqdata-biosignals/tests/conftest.py")
    for number, length in enumerate(LENGTHS):
        stored = made.numbers(length * 16, 2, seed=number)
        made.write_edf(folder / f"eeg/r{number}.edf", {16: ("c", stored)})
    return {"train": str(folder / "eeg")}


def write_frames(folder):
    rows = [
        {"series": f"s{number}", "step": step, "load": np.float32(step * number)}
        for number, length in enumerate(LENGTHS)
        for step in range(length)
    ]
    path = folder / "sales.parquet"
    shuffled = pd.DataFrame(rows).sample(frac=1, random_state=0)
    shuffled.to_parquet(path, index=False)  # sorted when it is opened
    return {"train": str(path), "group": "series", "order": "step", "backend": "frames"}


def write_text(folder):
    lines = [json.dumps({"text": "é" * length}) + "\n" for length in LENGTHS]
    path = folder / "corpus.jsonl"
    path.write_text("".join(lines), "utf-8")
    return {"train": str(path), "backend": "text:tokenizer=bytes"}


def write_tokens(folder):
    golden = PLUGINS / "seqdata-tokens/tests/golden"
    copied = shutil.copytree(golden / "mds-ndarray", folder / "tokens")
    return {"train": str(copied), "backend": "tokens"}


def write_tar(folder):
    import webdataset

    for shard in range(2):
        with webdataset.TarWriter(str(folder / f"x-{shard}.tar"), mtime=0) as writer:
            for row in make_rows()[5 * shard : 5 * shard + 5]:
                writer.write({"__key__": row["id"], "frames.npy": row["frames"]})
    assert CliRunner().invoke(app, ["index", str(folder / "x-{0..1}.tar")]).exit_code == 0
    return {"train": str(folder / "x-{0..1}.tar")}


KINDS = {
    "hdf5-gzip": lambda folder: write_arrays("hdf5-gzip", folder),
    "hdf5-mapped": lambda folder: write_arrays("hdf5-mapped", folder),
    "zarr": lambda folder: write_arrays("zarr", folder),
    "audio": write_audio,
    "biosignals": write_biosignals,
    "frames": write_frames,
    "text": write_text,
    "tokens": write_tokens,
    "webdataset": write_tar,
}


def run(folder, options, kill_at):
    """Train in a process of its own; return its exit status and errors, and the recorded steps."""
    record = folder / "record.jsonl"
    record.unlink(missing_ok=True)
    orders = folder / "orders.json"
    saved = {"data": options, "folder": str(folder / "ckpt"), "record": str(record)}
    orders.write_text(json.dumps({**saved, "kill_at": kill_at}))
    script = Path(killed_training.__file__)
    done = subprocess.run(
        [python(), str(script), str(orders)], capture_output=True, text=True, timeout=patient(120)
    )
    steps = [json.loads(line) for line in record.read_text().splitlines()]
    return done.returncode, done.stderr, steps


def list_batches(options):
    """Return the steps of all epochs as one process makes them, without a Trainer."""
    how = {name: value for name, value in options.items() if name != "train"}
    store = open_store(options["train"], **how)
    loader = Loader(store, killed_training.make_policy(), seed=killed_training.SEED)
    batches = []
    for epoch in range(killed_training.EPOCHS):
        loader.set_epoch(epoch)
        batches += map(killed_training.describe, loader)
    return [[step, batch] for step, batch in enumerate(batches)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_resumes_at_the_batch_after_its_checkpoint(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "cache"))
    options = KINDS[kind](tmp_path)
    expected = list_batches(options)
    kill_at = len(expected) - 3 | 1  # odd: every second step is saved, so one is repeated
    status, errors, before = run(tmp_path, options, kill_at)
    assert status == -signal.SIGKILL, errors
    assert before == expected[: kill_at + 1]
    status, errors, after = run(tmp_path, options, None)
    assert status == 0, errors
    assert after == expected[kill_at - 1 :]
