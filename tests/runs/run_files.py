"""Run files of tests, and batches that are made again from them."""

from pathlib import Path

import yaml

from seqdata.runs.locate_batch import FitGeometry, ReplayRequest, remake_batch
from seqdata.runs.replay import open_replay
from seqdata.runs.run_file import NAME, RunFile


def remake(batch: int, *, epoch: int = 0, path: Path = Path(NAME), kind="train", name=None):
    made = open_replay(path, ReplayRequest(epoch=epoch, batch=batch), kind, name)
    return remake_batch(made.engine, made.located)


def read_run_file() -> dict:
    return yaml.safe_load(Path(NAME).read_text())


def make_run_file(data: dict) -> RunFile:
    return RunFile(
        geometry=FitGeometry(), data=data, fingerprints={}, plan="", versions={}, trainer={}
    )
