"""Where a run file is written, and how it is named in a command."""

from pathlib import Path

import pytest

from seqdata.errors import SeqDataWarning
from seqdata.runs.locate_batch import FitGeometry
from seqdata.runs.run_file import NAME
from seqdata.runs.run_record import RunRecord
from tests.runs.run_files import make_run_file


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    file = make_run_file({})
    record = RunRecord()
    with pytest.warns(
        SeqDataWarning, match=r"seqdata-run\.yaml cannot be written \(.*\), so `seqd"
    ):
        record.keep_run_file(file, tmp_path / "file" / "logs", is_writer=True)
    assert record.make_command("train", None, 1, 2) == "data.replay(epoch=1, batch=2)"


def test_a_file_elsewhere_is_named_by_its_whole_path(tmp_path):
    record = RunRecord()
    record.keep_run_file(make_run_file({}), tmp_path / "my logs", is_writer=False)
    assert record.make_command("train", None, 1, 2) == (
        f"seqdata replay '{tmp_path.relative_to(Path.cwd()) / 'my logs' / NAME}' "
        "--epoch 1 --batch 2"
    )
    record.keep_run_file(make_run_file({}), Path("/elsewhere"), is_writer=False)
    assert record.make_command("train", None, 1, 2).startswith(f"seqdata replay /elsewhere/{NAME} ")


def test_a_fit_without_a_folder_forgets_the_run_file_of_the_fit_before(tmp_path):
    record, geometry = RunRecord(), FitGeometry(seed=3)
    record.keep_run_file(make_run_file({}), tmp_path, is_writer=False)
    assert record.make_command("train", None, 1, 2).startswith("seqdata replay ")
    record.begin_fit(geometry, None)
    assert record.geometry is geometry
    assert record.make_command("train", None, 1, 2) == "data.replay(epoch=1, batch=2)"
