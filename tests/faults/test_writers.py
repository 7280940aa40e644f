"""Writers on a disk that is full, or that fails to flush or rename: nothing is left of what failed.

Each way of writing a file is tried with each failure. What was there before stays, no part of a new
file does, and the message names the path.
"""

import ast
import errno
import os
import re
import resource
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from seqdata import open_store, write_store
from seqdata.cli._report.batch import save_batch
from seqdata.cli._report.ledger import write_ledger
from seqdata.cli._report.plots import save_figure
from seqdata.errors import SeqDataError
from seqdata.fitting.fit import fit
from seqdata.fitting.mean_std import MeanStd
from seqdata.loading.error_log import ErrorLog, read_error_list
from seqdata.loading.loader import Loader
from seqdata.loading.step_requests import StepRequest
from seqdata.plotting.axes import make_figure
from seqdata.policies.fixed import Fixed
from seqdata.runs.locate_batch import FitGeometry
from seqdata.runs.loss_files import LossHeader, LossWriter
from seqdata.runs.run_file import RunFile
from seqdata.storage.digest_trailer import read_with_digest, write_with_digest
from seqdata.storage.indexed.index_folder import LocalFiles
from seqdata.storage.integrity.audit import AuditFinding, copy_damaged_bytes
from seqdata.storage.local_files import open_atomically, write_atomically
from tests.runs.loss_runs import block_of

ROOT = Path(__file__).parents[2] / "seqdata"


def write_statistics(path):
    fit([{"x": np.arange(4.0)}], {"x": MeanStd()}).save(path)


def write_run(path):
    data = {"train": "a" * 5_000}
    run_file = RunFile(
        geometry=FitGeometry(), data=data, fingerprints={}, plan="", versions={}, trainer={},
        side_files={"seqdata-run-train.npz": {"numbers": np.arange(9_000)}},
    )  # fmt: skip
    run_file.write(path)


def write_losses(path):
    writer = LossWriter(path.parent, LossHeader(fit=1, rank=0, world=1, score="loss" * 1_500))
    writer.append(block_of([(0, 0, 0, tuple(range(900)), 0.5)]))


def write_batch(path):
    loader = Loader([np.arange(9_000.0)], Fixed(1))
    save_batch(next(iter(loader)), loader.store, path)


def write_plot(path):
    figure = make_figure((9, 9), "test")
    figure.subplots().plot(np.sin(np.arange(99.0)))
    save_figure(figure, path)


def write_bad(path):
    name = Path(np.__file__).name
    finding = AuditFinding("", {"file": name, "offset": 0, "length": 9_000})
    copy_damaged_bytes(Path(np.__file__).parent, finding, path.parent)


CONTENT = b"a" * 9_000
WRITERS = {
    "any file": ("x.bin", lambda path: write_atomically(path, CONTENT)),
    "statistics": ("stats.json", write_statistics),
    "run file": ("seqdata-run.yaml", write_run),
    "losses": ("seqdata-losses-fit1-rank0.bin", write_losses),
    "index": ("x.idx", lambda path: LocalFiles(path.parent).replace(path.name, CONTENT)),
    "report": ("ledger.jsonl", lambda path: write_ledger(iter([{"id": "a"}] * 900), str(path))),
    "plot": ("plan.png", write_plot),
    "batch": ("batch.npz", write_batch),
    "damaged bytes": ("__init__.py.0-9000.bad", write_bad),
}  # fmt: skip
IN_PLACE = {"losses"}  # a log that grows is neither flushed nor renamed


@contextmanager
def full(monkeypatch):
    """Let no file grow beyond some bytes, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def failing(monkeypatch, call, number):
    """Let a call of the system fail."""

    def fail(*arguments, **keywords):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        yield


FAILURES = {
    "full": full,
    "no flush": lambda patch: failing(patch, "fsync", errno.EIO),
    "no rename": lambda patch: failing(patch, "replace", errno.EIO),
    "no room to rename": lambda patch: failing(patch, "replace", errno.ENOSPC),
}


def contents_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("is_there", [False, True])
def test_no_part_of_a_file_stays_and_its_path_is_named(
    name, failure, is_there, tmp_path, monkeypatch
):
    if name in IN_PLACE and failure != "full":
        pytest.skip("it is neither flushed nor renamed")
    file, write = WRITERS[name]
    path = tmp_path / "out" / file
    path.parent.mkdir()
    if is_there and name not in IN_PLACE:
        path.write_bytes(b"as it was")
    before = contents_of(path.parent)
    with FAILURES[failure](monkeypatch), pytest.raises((OSError, SeqDataError)) as raised:
        write(path)
    assert str(path.parent) in str(raised.value)
    assert contents_of(path.parent) == before
    write(path)
    assert path.stat().st_size > 100


@pytest.mark.parametrize("failure", FAILURES)
def test_what_is_only_kept_for_later_is_left_out(failure, tmp_path, monkeypatch):
    path = tmp_path / "lengths"
    with FAILURES[failure](monkeypatch):
        assert not write_with_digest(path, CONTENT)
    assert contents_of(tmp_path) == {}
    assert write_with_digest(path, CONTENT)
    assert read_with_digest(path) == CONTENT


def test_a_device_is_written_and_not_replaced(tmp_path):
    with open_atomically(Path("/dev/null")) as file:
        file.write(CONTENT)
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="No space left on device"):
        write_atomically(Path("/dev/full"), CONTENT)
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("failure", FAILURES)
def test_a_store_that_cannot_be_written_is_none_and_its_folder_is_named(
    failure, tmp_path, monkeypatch
):
    rows = [np.arange(200.0) for _ in range(20)]
    with FAILURES[failure](monkeypatch), pytest.raises((OSError, SeqDataError)) as raised:
        write_store(tmp_path / "out", rows)
    assert str(tmp_path) in str(raised.value)
    with pytest.raises(SeqDataError):
        open_store(tmp_path / "out")
    assert len(write_store(tmp_path / "out", rows)) == 20


class Error(Exception):
    pass


def test_a_list_of_errors_that_cannot_be_written_does_not_end_a_run(tmp_path, monkeypatch, caplog):
    path = tmp_path / "errors.jsonl"
    log = ErrorLog(10, path)

    def add(sequence):
        spans = np.array([[sequence, 0, 1]])
        request = StepRequest(spans, spans[:, 0], epoch=0)
        log.add(Error(f"number {sequence}"), request, 0, loader="train", epoch=0, batch=sequence)

    add(0)
    with full(monkeypatch):
        for sequence in (1, 2):
            add(sequence)
        log.report_missing()
    assert len(log) == 3
    told = [record.getMessage() for record in caplog.records]
    assert sum("the list of errors cannot be written (" in line for line in told) == 1
    assert any(f"{path}: 2 of 3 errors are not in the list" in line for line in told)
    add(3)
    assert [entry["sequence"] for entry in read_error_list(path)] == [0, 1, 2, 3]
    log.report_missing()
    assert len(caplog.records) == len(told) + 1  # there is nothing more to say


def _find_writes(path):
    """Yield the functions of a file that open files to write."""
    modes = [repr(mode) for mode in ("w", "wb", "a", "ab", "x", "xb")]
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        calls = [ast.unparse(node) for node in ast.walk(function) if isinstance(node, ast.Call)]
        if "O_CREAT" in ast.unparse(function) or any(
            re.search(r"\.write_(bytes|text)\(", call)
            or (re.match(r"(click\.)?open(_file)?\(", call) and any(mode in call for mode in modes))
            for call in calls
        ):
            yield f"{path.relative_to(ROOT)}: {function.name}"


KNOWN = {
    "storage/local_files.py: open_atomically": "the way of writing a file",
    "storage/local_files.py: write_synced": "into a folder that is complete with its last file",
    "storage/arrow/shard_file.py: add": "of a staging folder",
    "storage/arrow/shard_file.py: _widen": "of a staging folder",
    "storage/integrity/checksums.py: write_checksums": "of a staging folder",
    "storage/local_copies.py: _write_placeholder": "into a temporary folder",
    "storage/local_copies.py: _fetch": "into a temporary folder",
    "storage/writing/staging_dir.py: _open_lock_file": "a lock",
    "storage/indexed/index_folder.py: replace": "into a temporary folder",
    "storage/remote/upload.py: _upload_lock": "a lock",
    "storage/remote/cache_folder.py: _write_marker": "renamed once it is complete",
    "storage/remote/copy_digests.py: record_digest": "renamed once it is complete",
    "storage/remote/cache_folder.py: open_cache_file": "a lock, or a copy that is renamed",
    "lightning/predictions/spill.py: add": "removed where anything fails",
    "lightning/callbacks/file_logger.py: _append_line": "a log",
    "loading/error_log.py: _append_line": "a log",
    "loading/workers/forkserver.py: _launch": "a pipe",
    "runs/loss_files.py: __init__": "a log",
}


def test_every_place_that_opens_a_file_to_write_is_known():
    found = {write for path in ROOT.rglob("*.py") for write in _find_writes(path)}
    assert found == set(KNOWN)
