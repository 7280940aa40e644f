"""Exit statuses of every command are those of the table in docs/api/command.md."""

import re
from pathlib import Path

import click
import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from seqdata import SequenceDataModule
from seqdata.api import open_store, write_store
from seqdata.cli.app import app
from seqdata.policies.fixed import Fixed
from seqdata.runs.loss_files import LossHeader, LossWriter
from seqdata.runs.run_file import FitGeometry, RunFile
from tests.runs.loss_runs import block_of
from tests.storage.integrity.checked import flip, place_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api" / "command.md"

FIT = {
    "data": {"class_path": "SequenceDataModule", "init_args": {"train": "damaged"}},
    "model": {"class_path": "ByteLM", "init_args": {"hidden": 4}},
    "trainer": {"max_epochs": 1, "accelerator": "cpu", "logger": False},
}

CASES = [
    ("write", 0, "x.npy", "written"),
    ("write", 1, "broken.npy", "out"),
    ("write", 2, "gone.npy", "out"),
    ("stats", 0, "store"),
    ("stats", 1, "damaged", "--values"),
    ("stats", 2, "gone"),
    ("index", 0, "shards"),
    ("index", 1, "cut.tar"),
    ("index", 2, "gone-*.tar"),
    ("verify", 0, "store"),
    ("verify", 1, "damaged"),
    ("verify", 2, "store", "--shard", "9"),
    ("tokenize", 0, "book.txt", "tokens", "--tokenizer", "bytes"),
    ("tokenize", 1, "latin.txt", "no-tokens", "--tokenizer", "bytes"),
    ("tokenize", 2, "gone.txt", "no-tokens", "--tokenizer", "bytes"),
    ("plan", 0, "store", "--max-tokens", "9"),
    ("plan", 1, "store", "--max-tokens", "3"),
    ("plan", 2, "store"),
    ("replay", 0, "store.yaml", "--epoch", "0", "--batch", "0"),
    ("replay", 1, "damaged.yaml", "--epoch", "0", "--batch", "1"),
    ("replay", 2, "gone.yaml", "--epoch", "0", "--batch", "0"),
    ("why", 0, "losses"),
    ("why", 1, "broken"),
    ("why", 2, "store"),
    ("fit", 0, "--print_config"),
    ("fit", 1, "--config", "fit.yaml"),
    ("fit", 2, "--nothing"),
    ("doctor", 0),
    ("doctor", 1, "gone"),
    ("doctor", 2, "--lanes", "3"),
    ("plugins", 0),
    ("plugins", 2, "--nothing"),
    ("plugins new", 0, "mine", "mine", "--kind", "policy"),
    ("plugins new", 2, "mine"),
    ("plugins check", 0, "tokens", "corpus.bin"),
    ("plugins check", 1, "no-such-backend", "store"),
    ("plugins check", 2),
]
ELSEWHERE = {("plugins", 1), ("plugins new", 1)}
"""A broken plugin: tests/plugins/test_third_party.py. No folder is closed to root."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data that is well, and data that is not."""
    folder = tmp_path_factory.mktemp("statuses")
    rows = [{"id": f"s{i}", "x": np.arange(i + 2.0)} for i in range(6)]
    for name in ("store", "damaged"):
        write_store(folder / name, rows)
    opened = open_store(folder / "damaged")
    file, place = place_of(opened, 2, "x")
    flip(folder / "damaged" / file, place)
    np.save(folder / "x.npy", np.arange(3.0))
    (folder / "broken.npy").write_bytes(b"\x93NUMPY nothing")
    (folder / "book.txt").write_text("a book\n")
    (folder / "latin.txt").write_bytes(b"a b\xe9ok\n")
    np.arange(1_000, dtype=np.uint16).tofile(folder / "corpus.bin")
    write_store(folder / "shards", rows, format="webdataset")
    (tar,) = (folder / "shards").glob("*.tar")
    (folder / "cut.tar").write_bytes(tar.read_bytes()[:700])
    for name in ("losses", "broken"):
        (folder / name).mkdir()
        writer = LossWriter(folder / name, LossHeader(fit=1, rank=0, world=1, score="loss"))
        writer.append(block_of([(0, 0, 0, [0, 1], [1.0, 2.0])]))
    (record,) = (folder / "broken").glob("seqdata-losses-*")
    record.unlink()
    record.mkdir()
    for name in ("store", "damaged"):
        data = SequenceDataModule(train=str(folder / name), batching=Fixed(2, shuffle=False))
        engine = data.train_dataloader().engine
        RunFile.from_options(
            data._options, FitGeometry(), Path(),
            fingerprints={"train": [engine.index.fingerprint]}, plan=engine.fingerprint(0),
            versions={}, trainer={},
        ).write(folder / f"{name}.yaml")  # fmt: skip
    (folder / "fit.yaml").write_text(yaml.safe_dump(FIT))
    return folder


@pytest.mark.slow
def test_every_command_ends_with_the_statuses_of_the_table(folder, monkeypatch):
    pytest.importorskip("seqdata_webdataset")
    pytest.importorskip("seqdata_text")
    pytest.importorskip("seqdata_tokens")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["seqdata"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    wrong = []
    for name, status, *arguments in CASES:
        done = CliRunner().invoke(app, [*name.split(), *arguments])
        if done.exit_code != status:
            wrong.append((name, *arguments, status, done.exit_code, done.output[-300:]))
    assert not wrong, "\n".join(map(repr, wrong))


def test_the_table_has_every_command_and_each_status_is_tried():
    rows = re.findall(r"^\| `([a-z ]+)` \| \S.* \| \S.* \| \S.* \|$", PAGE.read_text("utf-8"), re.M)
    groups = [("", app), ("plugins ", app.commands["plugins"])]
    commands = [
        f"{prefix}{name}" for prefix, group in groups
        for name in group.list_commands(click.Context(group))
    ]  # fmt: skip
    assert sorted(rows) == sorted(commands)
    tried = {(name, status) for name, status, *_ in CASES} | ELSEWHERE
    assert tried == {(name, status) for name in commands for status in (0, 1, 2)}
