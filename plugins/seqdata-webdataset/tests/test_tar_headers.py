"""Headers of tar files: what is read, and what is refused, saying where."""

import shutil
import subprocess
import tarfile

import numpy as np
import pytest
from seqdata_webdataset.tar_headers import iter_members

from seqdata.errors import CorruptShardError, DecodeError, LimitError, UnsafeContentError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.local_files import map_shard

PLACE = DataLocation(dataset="d", shard=0, file="one.tar")


def walked(path):
    return list(iter_members(np.fromfile(path, dtype=np.uint8), PLACE))


LONG = "deep/" * 30 + "x" * 120 + ".npy"
NAMES = ["a.npy", "p/" * 60 + "q.npy", LONG, "é" * 40 + ".npy", "é" * 90 + ".npy"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_names_of_any_length_are_what_the_standard_library_reads(tar, name, format):
    path = tar([(name, b"abc"), ("z.cls", b"1")], format=format)
    found = walked(path)
    assert [raw.decode() for raw, _, _ in found] == [name, "z.cls"]
    with tarfile.open(path) as due:
        assert [(one.offset_data, one.size) for one in due] == [one[1:] for one in found]


def test_names_of_two_parts_are_joined(tar):
    name = "p/" * 60 + "q.npy"
    assert walked(tar([(name, b"")]))[0][0] == name.encode()


def test_folders_are_passed_over(tar):
    found = walked(tar([("d", b"", {"type": tarfile.DIRTYPE}), ("d/a.npy", b"1")]))
    assert [name for name, _, _ in found] == [b"d/a.npy"]


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize("form", ["gnu", "posix"])
@pytest.mark.parametrize("more", [["--label=train, 2024"], ["--listed-incremental=state"]])
def test_labels_and_lists_of_folders_that_tar_writes_are_passed_over(tmp_path, form, more):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.npy").write_bytes(b"1")
    (tmp_path / "d" / "b.npy").write_bytes(b"23")
    command = ["tar", "--sort=name", f"--format={form}", *more, "-cf", "x.tar", "d"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    found = walked(tmp_path / "x.tar")
    assert [(name, size) for name, _, size in found] == [(b"d/a.npy", 1), (b"d/b.npy", 2)]


def test_sizes_may_be_written_in_binary(tar):
    path = tar([("a.npy", b"abcd")])
    raw = bytearray(path.read_bytes())
    raw[124:136] = b"\x80" + (4).to_bytes(11, "big")
    reseal(raw, 0)
    path.write_bytes(raw)
    assert walked(path) == [(b"a.npy", 512, 4)]


def test_a_size_may_be_told_by_a_header_before(tar):
    path = tar([("a.npy", b"abcd", {"pax_headers": {"size": "4"}})], format=tarfile.PAX_FORMAT)
    assert walked(path) == [(b"a.npy", 1536, 4)]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_members_of_more_than_8_gib_are_walked_over(tmp_path, format):
    sizes = {"a.npy": 9 << 30, "b.npy": 5, "c.npy": (17 << 30) + 1}
    path, at, begins = tmp_path / "x.tar", 0, {}
    with path.open("wb") as file:  # sparse: only headers take room
        for name, size in sizes.items():
            about = tarfile.TarInfo(name)
            about.size = size
            header = about.tobuf(format)
            assert (b" size=" in header) == (format == tarfile.PAX_FORMAT and size >= 8 << 30)
            file.seek(at)
            file.write(header)
            begins[name] = at + len(header)
            at = begins[name] + -(-size // 512) * 512
        file.truncate(at + 1024)
    assert path.stat().st_blocks < 1000
    found = list(iter_members(map_shard(path, PLACE), PLACE))
    assert found == [(name.encode(), begins[name], size) for name, size in sizes.items()]
    with tarfile.open(path) as due:
        assert [(one.offset_data, one.size) for one in due] == [one[1:] for one in found]


def test_sums_of_signed_bytes_are_known(tar):
    path = tar([("é.npy", b"abcd")])
    raw = bytearray(path.read_bytes())
    high = sum(byte > 127 for byte in raw[:512])
    told = int(bytes(raw[148:154]), 8) - 256 * high
    raw[148:156] = f"{told:06o}\0 ".encode()
    path.write_bytes(raw)
    assert high == 2
    assert len(walked(path)) == 1


def reseal(raw, at):
    raw[at + 148 : at + 156] = b" " * 8
    raw[at + 148 : at + 156] = f"{sum(raw[at : at + 512]):06o}\0 ".encode()


LINK, SYMLINK, PIPE, DEVICE = (
    {"type": one, "linkname": "/etc/passwd"}
    for one in (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
)


@pytest.mark.parametrize(
    ("about", "what"),
    [(LINK, "a hard link"), (SYMLINK, "a symbolic link"), (PIPE, "a pipe"), (DEVICE, "a device")],
)
def test_links_and_devices_are_refused(tar, about, what):
    path = tar([("a.npy", b"12"), ("evil.npy", b"", about)])
    with pytest.raises(
        UnsafeContentError, match=f'member "evil.npy" must be a plain file, but is {what}'
    ):
        walked(path)


def test_sparse_members_are_refused(tar):
    path = tar([("a.npy", b"12", {"type": tarfile.GNUTYPE_SPARSE})])
    with pytest.raises(DecodeError, match=r'member "a.npy" must be a plain file, but is sparse'):
        walked(path)


def test_sparse_members_of_pax_are_refused(tar):
    about = {"pax_headers": {"GNU.sparse.major": "1"}}
    with pytest.raises(DecodeError, match="is sparse"):
        walked(tar([("a.npy", b"12", about)], format=tarfile.PAX_FORMAT))


def test_members_of_unknown_types_are_refused(tar):
    with pytest.raises(
        DecodeError, match=r'member "a.npy" must be a plain file, but is of type b\'M\''
    ):
        walked(tar([("a.npy", b"", {"type": b"M"})]))


def test_a_damaged_header_is_found(tar):
    path = tar([("a.npy", b"12"), ("b.npy", b"34")])
    raw = bytearray(path.read_bytes())
    raw[1024 + 3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(
        CorruptShardError, match=r"bytes 1024..1536: must be a valid header of a tar file"
    ):
        walked(path)


@pytest.mark.parametrize("size", [0, 100, 512, 1024, 1536, 2048, 2049, 2560])
def test_a_shard_that_was_cut_off_is_never_a_shorter_one(tar, size):
    path = tar([("a.npy", b"12"), ("b.npy", b"34")])
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CorruptShardError, match="cut off"):
        walked(path)


def test_a_member_that_does_not_fit_is_named(tar):
    path = tar([("a.npy", b"1" * 2000)])
    path.write_bytes(path.read_bytes()[:1024])
    with pytest.raises(
        CorruptShardError, match="must be followed by a member of 2000 bytes, but only 512 bytes"
    ):
        walked(path)


def test_zeros_in_the_middle_are_no_end(tar):
    path = tar([(f"{i}.npy", b"1") for i in range(9)])
    raw = bytearray(path.read_bytes())
    raw[2048:4096] = bytes(2048)
    path.write_bytes(raw)
    with pytest.raises(
        CorruptShardError, match=r"after its end at byte 2048, but has other data at byte 4096"
    ):
        walked(path)


def test_pax_records_that_are_none_are_found(tar):
    name = "é" * 90 + ".npy"
    path = tar([(name, b"1")], format=tarfile.PAX_FORMAT)
    path.write_bytes(path.read_bytes().replace(b" path=", b" path ", 1))
    assert walked(path)[0][0] != name.encode()
    path = tar([(name, b"1")], format=tarfile.PAX_FORMAT)
    raw = path.read_bytes()
    path.write_bytes(raw[:512] + b"9" + raw[513:])
    with pytest.raises(CorruptShardError, match="must be a list of pax records, but is not"):
        walked(path)


def test_a_size_that_is_no_number_is_found(tar):
    path = tar([("a.npy", b"1", {"pax_headers": {"size": "-7"}})], format=tarfile.PAX_FORMAT)
    with pytest.raises(CorruptShardError, match="must have an integer as size, but has b'-7'"):
        walked(path)


def test_a_header_larger_than_the_cap_is_refused(tar):
    path = tar([("a", b"x" * (1 << 20) + b"y", {"type": tarfile.GNUTYPE_LONGNAME})])
    with pytest.raises(
        LimitError, match="must have a header of at most 1048576 bytes, but has one of 1048577"
    ):
        walked(path)
