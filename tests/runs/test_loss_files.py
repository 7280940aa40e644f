"""The files of losses: whole after a crash, replaced by what a resumed fit trains again."""

import math

import numpy as np
import pytest

from seqdata.errors import ConfigError, DataError
from seqdata.runs import loss_files
from seqdata.runs.loss_files import LossBlock, LossFiles, LossHeader, LossWriter, count_fits
from seqdata.storage.digest_trailer import add_digest
from tests.runs.loss_runs import block_of


def write(folder, *blocks, fit=1, rank=0, world=1, **more):
    """Write the file of one rank; return its path."""
    header = LossHeader(fit=fit, rank=rank, world=world, score="loss", **more)
    writer = LossWriter(folder, header)
    for block in blocks:
        writer.append(block)
    return writer.path


def batch_at(step, ids=(1, 2), score=0.5):
    """A block of one batch."""
    return block_of([(step, 0, step, ids, score)])


def steps(*folders):
    """The steps of all batches that are read, with their ranks."""
    losses = LossFiles.open(folders)
    read = [(int(step), block.rank) for block in losses.iterate_blocks() for step in block.steps]
    return read, list(losses.problems)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_block_is_read_as_it_was_written(tmp_path, dtype):
    scores = dtype([0.1, math.nan, math.inf, -3e30])
    block = block_of(
        [
            (7, 1, 3, [5, 1 << 40], scores[:2]),
            (7, 1, 4, [], np.zeros(0)),
            (8, 1, 5, [3, 3], scores[2:]),
        ],
        parts=np.array([1, 0, -1, 1]),
        names=["de", "en"],
    )
    path = write(tmp_path, block, rank=3, world=4)
    assert path.name == "seqdata-losses-fit1-rank3.bin"
    losses = LossFiles.open([tmp_path])
    read = next(losses.iterate_blocks())
    for name in LossBlock.__slots__[:8]:
        kept, found = getattr(block, name), getattr(read, name)
        np.testing.assert_array_equal(found, kept)
        assert found.dtype == kept.dtype
    assert list(read.names) == ["de", "en"]
    assert read.rank == 3
    assert losses.score == "loss"
    assert read.batch_of_row.tolist() == [0, 0, 2, 2]


def test_names_of_parts_are_those_of_all_files(tmp_path):
    write(tmp_path, block_of([(0, 0, 0, [1], [1.0])], parts=np.array([0]), names=["b"]), world=2)
    write(
        tmp_path,
        block_of([(0, 0, 0, [1, 2], [1.0, 1.0])], parts=np.array([0, 1]), names=["a", "b"]),
        rank=1,
        world=2,
    )
    losses = LossFiles.open([tmp_path])
    blocks = list(losses.iterate_blocks())
    assert [[losses.names[code] for code in block.parts] for block in blocks] == [["b"], ["a", "b"]]


def test_a_fit_replaces_what_it_trains_again(tmp_path):
    write(tmp_path, *(batch_at(step) for step in range(6)))
    assert count_fits(tmp_path) == 1
    write(tmp_path, batch_at(4), batch_at(5), batch_at(6), fit=2)
    assert steps(tmp_path) == ([(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)], [])
    write(tmp_path, batch_at(2), fit=3)  # from an earlier checkpoint: fit 2 is left behind
    assert steps(tmp_path) == ([(0, 0), (1, 0), (2, 0)], [])
    assert count_fits(tmp_path) == 3


def test_a_fit_on_fewer_ranks_replaces_the_records_of_all(tmp_path):
    for rank in range(3):
        write(tmp_path, *(batch_at(step) for step in range(4)), rank=rank, world=3)
    write(tmp_path, batch_at(3), batch_at(4), fit=2)
    found, problems = steps(tmp_path)
    assert sorted(found) == [(step, rank) for step in range(3) for rank in range(3)] + [
        (3, 0),
        (4, 0),
    ]
    assert not problems


def test_folders_are_read_in_their_order(tmp_path):
    for name, first in (("version_0", 0), ("version_1", 3)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, *(batch_at(first + i) for i in range(5)))
    found, _ = steps(tmp_path / "version_0", tmp_path / "version_1")
    assert [step for step, _ in found] == list(range(8))


def test_a_file_that_was_cut_off_is_read_as_far_as_it_is_whole(tmp_path):
    path = write(tmp_path, *(batch_at(step) for step in range(3)))
    raw = path.read_bytes()
    ends = [i for i in range(len(raw)) if raw.startswith(b"losses ", i)] + [len(raw)]
    for size in range(ends[1], len(raw), 37):
        path.write_bytes(raw[:size])
        whole = sum(end <= size for end in ends[2:])
        found, problems = steps(tmp_path)
        assert [step for step, _ in found] == list(range(whole))
        is_cut = size not in ends
        assert problems == (
            [f"{path} ends within a block: block {whole + 1} is dropped."] if is_cut else []
        )


def test_a_damaged_block_is_left_out_and_named(tmp_path):
    path = write(tmp_path, *(batch_at(step) for step in range(3)))
    raw = bytearray(path.read_bytes())
    second = [i for i in range(len(raw)) if raw.startswith(b"losses ", i)][2]
    raw[second + 200] ^= 1
    path.write_bytes(raw)
    assert steps(tmp_path) == ([(0, 0), (2, 0)], [f"{path} is damaged: block 2 is dropped."])


def test_a_block_of_another_file_is_not_believed(tmp_path):
    path = write(tmp_path, batch_at(0))
    (tmp_path / "seqdata-losses-fit2-rank0.bin").write_bytes(path.read_bytes())
    found, problems = steps(tmp_path)
    assert found == [(0, 0)]
    assert problems == [
        f"{tmp_path / 'seqdata-losses-fit2-rank0.bin'} has no whole header and is not read."
    ]


def test_a_file_without_a_whole_header_is_named(tmp_path):
    path = write(tmp_path, batch_at(0), world=2)
    write(tmp_path, batch_at(0), rank=1, world=2).write_bytes(b"losses 0 9999\n{")
    found, problems = steps(tmp_path)
    assert found == [(0, 0)]
    assert problems == [
        f"{tmp_path / 'seqdata-losses-fit1-rank1.bin'} has no whole header and is not read.",
        f"{tmp_path}: fit 1 ran on 2 ranks, but files of rank 1 are missing: copy them into this "
        "folder.",
    ]
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="must be a folder with the losses of a run"):
        steps(tmp_path)


def test_a_folder_without_losses_is_refused(tmp_path):
    (tmp_path / "seqdata-losses-fit1-rankx.bin").write_bytes(b"")
    with pytest.raises(
        ConfigError,
        match=r"must be a folder with the losses of a run, but is without them. Pass the Trainer's "
        r"log folder, or the `folder` of LossRecord; training writes them with callbacks=\[Loss",
    ):
        LossFiles.open([tmp_path])


def test_files_of_another_release_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(loss_files, "VERSION", 2)
    write(tmp_path, batch_at(0))
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"the version must be 1, but is 2. Use the release of"):
        LossFiles.open([tmp_path])


def test_a_header_with_other_keys_is_refused(tmp_path):
    path = tmp_path / "seqdata-losses-fit1-rank0.bin"
    sealed = add_digest(b'{"version": 1, "fit": 1}', f"{path.name} 0")
    path.write_bytes(b"losses 0 %d\n" % len(sealed) + sealed)
    message = "the header must have the keys version, fit, rank, world, score, run, but has version"
    with pytest.raises(ConfigError, match=message):
        LossFiles.open([tmp_path])


def test_a_block_of_other_arrays_is_refused(tmp_path):
    path = write(tmp_path)
    sealed = add_digest(b"no archive", f"{path.name} 1")
    path.write_bytes(path.read_bytes() + b"losses 1 %d\n" % len(sealed) + sealed)
    with pytest.raises(DataError, match=r"a block is not as this release writes it \(.*\). Use"):
        LossFiles.open([tmp_path])


def test_a_block_that_is_not_written_whole_is_an_error(tmp_path, monkeypatch):
    writer = LossWriter(tmp_path, LossHeader(fit=1, rank=0, world=1, score="loss"))
    monkeypatch.setattr(loss_files.os, "write", lambda descriptor, raw: len(raw) - 1)
    with pytest.raises(OSError, match=r"\d+ of \d+ bytes were written"):
        writer.append(batch_at(0))


def test_the_folder_of_the_run_file_is_remembered(tmp_path):
    (tmp_path / "losses").mkdir()
    write(tmp_path / "losses", batch_at(0), run="../logs")
    assert LossFiles.open([tmp_path / "losses"]).run_folders == [tmp_path / "logs"]


def test_some_batches_of_a_block_have_their_rows():
    block = block_of([(0, 0, 0, [1, 2], 0.5), (1, 0, 1, [3], [2.0]), (2, 0, 2, [4, 5], 1.0)])
    assert block.select(np.array([True] * 3)) is block
    chosen = block.select(np.array([True, False, True]))
    assert chosen.ids.tolist() == [1, 2, 4, 5]
    assert chosen.offsets.tolist() == [0, 2, 4]
    assert chosen.is_shared.tolist() == [True, True]
    assert not len(block.select(np.array([False] * 3)).ids)
