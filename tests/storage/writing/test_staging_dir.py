"""A store is there as a whole or not at all, whoever fails, is killed or writes beside."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest

from seqdata.errors import ConfigError, DecodeError, IncompleteDatasetError
from seqdata.storage import file_lock
from seqdata.storage.arrow.manifest import MANIFEST, STORE_FILES
from seqdata.storage.arrow.store import open_arrow
from seqdata.storage.arrow.write import ArrowFormat, write_arrow
from seqdata.storage.digest_trailer import add_digest
from seqdata.storage.writing import staging_dir
from seqdata.storage.writing.sharded_writer import write_part
from seqdata.storage.writing.shards import ResumeKey, check_resume_key
from seqdata_testing.waiting import patient


def numbers(*lengths):
    return [{"x": np.arange(length, dtype=np.int32)} for length in lengths]


def test_a_store_that_is_there_is_replaced_only_when_asked(tmp_path):
    write_arrow(tmp_path, numbers(*[9] * 9), shard_bytes=80)
    with pytest.raises(
        ConfigError, match=r"already holds a store. Choose another folder, .*`overwr"
    ):
        write_arrow(tmp_path, numbers(1))
    assert write_arrow(tmp_path, numbers(1), overwrite=True).lengths.tolist() == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lengths-time.u32", "part-00000.arrow", "part-00000.crc", MANIFEST,
    ]  # fmt: skip


def test_a_failed_overwrite_leaves_the_old_store_as_it_was(tmp_path):
    before = write_arrow(tmp_path, numbers(1, 2)).fingerprint
    with pytest.raises(DecodeError):
        write_arrow(tmp_path, [*numbers(3), {"x": "text"}], shard_bytes=1, overwrite=True)
    assert open_arrow(tmp_path).fingerprint == before


def test_an_open_store_is_still_read_after_it_was_replaced(tmp_path):
    old = write_arrow(tmp_path, numbers(5))
    write_arrow(tmp_path, numbers(2), overwrite=True)
    piece = old.read(np.array([[0, 0, 5]]), ["x"])["x"][0]
    assert piece.tolist() == [0, 1, 2, 3, 4]


def test_files_that_no_manifest_names_are_not_replaced_unasked(tmp_path):
    (tmp_path / "part-00000.arrow").write_bytes(b"somebody's")
    text = r"must be a folder without files of a store, but is one with 'part-00000\.arrow'"
    with pytest.raises(ConfigError, match=text):
        write_arrow(tmp_path, numbers(1))
    assert len(write_arrow(tmp_path, numbers(1), overwrite=True)) == 1


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file: must be a folder, or missing, but is a file"):
        write_arrow(tmp_path / "file", numbers(1))


def test_an_overwrite_that_stops_among_its_renames_leaves_no_store(tmp_path, monkeypatch):
    """Half of the old and half of the new must never be read as one."""
    write_arrow(tmp_path, numbers(*[9] * 9), shard_bytes=80)
    rename = os.replace

    def fails(source, target):
        if str(target).endswith("part-00001.arrow"):
            raise OSError("disk is gone")
        rename(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk is gone"):
        write_arrow(tmp_path, numbers(*[8] * 9), shard_bytes=80, overwrite=True)
    with pytest.raises(IncompleteDatasetError, match="writing was not finished"):
        open_arrow(tmp_path)


KILLED = """
import os, signal, sys
import numpy as np
from seqdata.storage.arrow.write import write_arrow

def rows():
    for i in range(int(sys.argv[2])):
        yield {"x": np.arange(9)}
    os.kill(os.getpid(), signal.SIGKILL)

write_arrow(sys.argv[1], rows(), shard_bytes=100)
"""


def test_what_a_killed_writer_left_is_removed_where_nobody_goes_on_with_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), "10"], timeout=patient(), check=False
    )
    assert done.returncode == -9
    assert list(tmp_path.glob(".seqdata-tmp-*/*.arrow"))
    assert len(write_arrow(tmp_path, numbers(1), resume=False)) == 1
    assert not list(tmp_path.glob(".seqdata-tmp-*"))


def test_a_first_pass_is_finished_once_it_has_files_and_no_writer(tmp_path):
    folder = tmp_path / ".seqdata-tmp-outer" / staging_dir.FIRST_PASS
    assert not staging_dir.is_first_pass_finished(tmp_path)
    folder.mkdir(parents=True)
    assert not staging_dir.is_first_pass_finished(tmp_path)
    (folder / ".seqdata-tmp-inner").mkdir()
    assert not staging_dir.is_first_pass_finished(tmp_path)
    (folder / ".seqdata-tmp-inner").rename(folder / MANIFEST)
    assert staging_dir.is_first_pass_finished(tmp_path)


def test_two_writers_of_one_folder_are_refused(tmp_path):
    def rows():
        yield {"x": [1]}
        write_arrow(tmp_path, numbers(1))

    with pytest.raises(ConfigError, match="another process is writing here"):
        write_arrow(tmp_path, rows())


def write_at_once(folder, lengths, monkeypatch, step):
    """Write stores of one sequence each from threads that meet before and after a step.

    Returns:
        The lengths that were written, and the errors.
    """
    written, errors = [], []
    met, known = threading.Barrier(len(lengths)), getattr(staging_dir, step)

    def meet(root):
        met.wait(patient())
        given = known(root)
        met.wait(patient())
        return given

    def write(length):
        try:
            write_arrow(folder, numbers(length))
            written.append(length)
        except ConfigError as error:
            errors.append(str(error))

    monkeypatch.setattr(staging_dir, step, meet)
    threads = [threading.Thread(target=write, args=(length,)) for length in lengths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient())
    return written, errors


def test_of_writers_that_begin_at_once_one_writes(tmp_path, monkeypatch):
    """All have seen an empty folder; a writer that begins when another has ended sees its store."""
    folder = tmp_path / "store"
    written, errors = write_at_once(folder, [1, 2, 3, 4], monkeypatch, "make_folder")
    assert open_arrow(folder).lengths.tolist() == written
    told = ("another process is writing here", "already holds a store")
    assert [any(text in error for text in told) for error in errors] == [True] * 3
    assert not list(folder.glob(".seqdata-tmp-*"))


def test_a_writer_that_begins_while_another_one_makes_its_folder_is_refused(tmp_path, monkeypatch):
    known, refused = staging_dir.create_staging_dir, []

    def create(root):
        monkeypatch.setattr(staging_dir, "create_staging_dir", known)
        with pytest.raises(ConfigError, match="another process is writing here"):
            write_arrow(tmp_path, numbers(7))
        refused.append(root)
        return known(root)

    monkeypatch.setattr(staging_dir, "create_staging_dir", create)
    assert write_arrow(tmp_path, numbers(1)).lengths.tolist() == [1]
    assert refused == [tmp_path]


def test_without_locks_no_writer_goes_on_beside_another_one(tmp_path, monkeypatch):
    def flock(descriptor, kind):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(file_lock.fcntl, "flock", flock)
    folder = tmp_path / "store"
    written, errors = write_at_once(folder, [1, 2], monkeypatch, "create_staging_dir")
    assert len(written) <= 1
    assert len(errors) + len(written) == 2
    assert all("another process is writing here" in error for error in errors)
    if written:  # the other one had gone by then
        assert open_arrow(folder).lengths.tolist() == written
    assert not list(tmp_path.glob("store/.seqdata-tmp-*"))


def test_a_store_that_was_finished_since_the_first_look_is_not_replaced(tmp_path, monkeypatch):
    known = staging_dir.make_folder

    def write_first(root):
        monkeypatch.setattr(staging_dir, "make_folder", known)
        write_arrow(root, numbers(7))
        known(root)

    monkeypatch.setattr(staging_dir, "make_folder", write_first)
    with pytest.raises(ConfigError, match="already holds a store"):
        write_arrow(tmp_path, numbers(1))
    assert open_arrow(tmp_path).lengths.tolist() == [7]


@pytest.mark.parametrize("step", ["hold_folder", "create_staging_dir"])
def test_a_folder_that_another_writer_removes_at_its_end_is_in_use(tmp_path, monkeypatch, step):
    known = getattr(staging_dir, step)

    def remove(root):
        root.rmdir()
        return known(root)

    monkeypatch.setattr(staging_dir, step, remove)
    with pytest.raises(ConfigError, match="another process is writing here"):
        write_arrow(tmp_path / "store", numbers(1))


def test_an_error_stays_what_it_is_where_the_folder_was_removed_meanwhile(tmp_path):
    def rows():
        yield {"x": [1]}
        shutil.rmtree(tmp_path / "store")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write_arrow(tmp_path / "store", rows())


@pytest.mark.parametrize("name", ["scheme.json", "moves.json", "00000.done"])
def test_notes_of_a_writer_are_believed_sealed_only(tmp_path, name):
    """A flipped bit in them loses work, never data: what they are about is done again."""
    folder = tmp_path / "aside"
    folder.mkdir()
    scheme = ResumeKey(axes=None, shard_bytes=1, key="id", algorithm="crc32c", parts=None)
    part = partial(list, [{"x": [1, 2]}, {"x": [3]}])
    if name == "scheme.json":
        check_resume_key(tmp_path, folder, scheme)
    elif name == "moves.json":
        (folder / name).write_bytes(add_digest(b'{"a": "part-00000.arrow"}', name))
        (tmp_path / "part-00000.arrow").touch()
    else:
        due = write_part(folder, 0, part, scheme, ArrowFormat)
    raw = (folder / name).read_bytes()
    for bit in range(0, 8 * len(raw), 5):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        (folder / name).write_bytes(flipped)
        if name == "scheme.json":
            with pytest.raises(ConfigError, match=r"must be as the writer left it, but is damaged"):
                check_resume_key(tmp_path, folder, scheme)
        elif name == "moves.json":
            staging_dir._undo_moves(tmp_path, folder, STORE_FILES)
            assert (tmp_path / "part-00000.arrow").exists()
        else:
            assert write_part(folder, 0, part, scheme, ArrowFormat).shards == due.shards
            assert (folder / name).read_bytes() == raw
    if name == "moves.json":
        (folder / name).write_bytes(raw)
        staging_dir._undo_moves(tmp_path, folder, STORE_FILES)
        assert [path.name for path in folder.iterdir()] == ["a"]
