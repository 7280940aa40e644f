"""The bar of ``seqdata write``, in one pass and in two."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from seqdata.cli.write import ReadProgress, report_kept, report_resume
from seqdata.readers.source import SourceFile
from seqdata.storage.writing.staging_dir import FIRST_PASS


class Bar:
    def __init__(self):
        self.calls = []

    def begin(self, *values):
        self.calls.append(("begin", *values))

    def restart(self, *values):
        self.calls.append(("restart", *values))

    def update(self, *values):
        self.calls.append(("update", *values))


@dataclass
class Reading:
    """Files of ten bytes each, and the bar of reading them."""

    bar: Bar
    progress: ReadProgress
    files: list[SourceFile]


@pytest.fixture
def reading(tmp_path):
    bar = Bar()
    for name in "abc":
        (tmp_path / name).write_bytes(bytes(10))
    files = [SourceFile(tmp_path / name, name) for name in "abc"]
    return Reading(bar, ReadProgress(bar, resumed=1), files)


def test_bytes_of_files_that_were_read_are_the_way_done(reading):
    for number, _ in enumerate(reading.progress.track(reading.files), start=1):
        reading.progress.on_progress(number, 100 * number)
    assert reading.bar.calls == [
        ("restart", 1, 0), ("update", 1, 100, 0), ("update", 2, 200, 10), ("update", 3, 300, 20),
    ]  # fmt: skip


def test_a_second_pass_is_measured_in_sequences(reading):
    list(reading.progress.track(reading.files))
    for count in (2, 3, 1, 3):
        reading.progress.on_progress(count, 100 * count)
    assert reading.bar.calls == [
        ("update", 2, 200, 30), ("update", 3, 300, 30),
        ("begin", "pass 2 of 2", 3), ("restart", 1, 1), ("update", 1, 100, 1),
        ("update", 3, 300, 3),
    ]  # fmt: skip


def test_nothing_is_drawn_without_a_bar():
    ReadProgress(None, 0).on_progress(1, 1)


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_finished_first_pass_is_told_of(tmp_path, capsys, is_finished):
    folder = tmp_path / ".seqdata-tmp-0" / FIRST_PASS
    folder.mkdir(parents=True)
    Path(folder, "seqdata.json" if is_finished else ".seqdata-tmp-1").touch()
    assert report_resume(str(tmp_path)) == 0
    report_kept(str(tmp_path))
    expected = [
        "continuing with the second pass",
        "note: all sequences are kept in the order given: the same command continues with the "
        "second pass, or starts again with --no-resume",
    ]
    assert capsys.readouterr().err.splitlines() == (expected if is_finished else [])
