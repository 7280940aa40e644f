"""Run files of tests, and batches that are made again from them."""

from pathlib import Path

import yaml

from seqdata.runs.locate_batch import FitGeometry, ReplayRequest, remake_batch
from seqdata.runs.replay import open_replay
from seqdata.runs.run_file import NAME, RunFile


def remake(batch: int, *, epoch: int = 0, path: Path = Path(NAME), kind="train", name=None):
    made = open_replay(path, ReplayRequest(epoch=epoch, batch=batch), kind, name)
    return remake_batch(made.engine, made.located)


def read_run_file(path: Path = Path(NAME)) -> dict:
    """Return the record of a run file, and its arguments under ``data``."""
    text = path.read_text()
    block = text.partition("# /// seqdata-run\n")[2].partition("# ///\n")[0]
    return {**yaml.safe_load(block.replace("# ", "")), **yaml.safe_load(text)}


def write_run_file(plain: dict, path: Path = Path(NAME)) -> None:
    """Write a run file as if it had been edited, so without its seal."""
    record = yaml.safe_dump({key: plain[key] for key in plain if key != "data"})
    block = "".join(f"# {line}\n" for line in record.splitlines())
    data = yaml.safe_dump({"data": plain["data"]} if "data" in plain else {})
    path.write_text(f"{data}# /// seqdata-run\n{block}# ///\n")


def make_run_file(data: dict) -> RunFile:
    return RunFile(
        geometry=FitGeometry(), data=data, fingerprints={}, plan="", versions={}, trainer={}
    )
