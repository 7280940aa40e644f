"""Files of NumPy: an array each."""

import io
import pickle

import numpy as np
import pytest

from seqdata.errors import ConfigError, DecodeError
from seqdata.readers.binary import read_npy, refuse_binary
from seqdata.readers.source import ReadOptions, find_source


def test_npy_is_an_array_per_file(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "a.npy", array)
    (one,) = read_npy(find_source(tmp_path)[0], ReadOptions(field="mel"))
    assert one["id"] == "a.npy"
    assert one["mel"].dtype == np.float32
    assert one["mel"].tolist() == array.tolist()


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("the pickle was run",)


def archive():
    out = io.BytesIO()
    np.savez(out, a=np.zeros(2))
    return out.getvalue()


def saved(array, **options):
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no array", r"cannot be read \(it begins with b'no arr' and has no header of NumPy\)"),
        (
            np.arange(9, dtype="<u2").tobytes(),
            r"cannot be read .* no header of NumPy\)",
        ),  # as dolma writes
        (b"", "cannot be read"),
        (pickle.dumps(Bomb()), "cannot be read"),
        (saved(np.array([Bomb()], dtype=object), allow_pickle=True), "cannot be read .Object"),
        (saved(np.float32(3)), "holds a single number"),
        (archive(), "is an archive of several arrays"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(tmp_path, content, message):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(
        DecodeError, match=rf"a\.npy': {message}.*, but must be a \.npy file of one"
    ):
        list(read_npy(find_source(tmp_path)[0], ReadOptions()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of NumPy, for old dtypes
def test_every_flip_of_a_header_is_refused_or_harmless(tmp_path):
    array = np.arange(300, dtype=np.int16)
    well = saved(array)
    for bit in range(8 * (len(well) - array.nbytes)):
        flipped = bytearray(well)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "a.npy").write_bytes(flipped)
        try:
            ((found,),) = (list(read_npy(find_source(tmp_path)[0], ReadOptions())),)
        except DecodeError:
            continue
        assert found["x"].nbytes == array.nbytes


def test_bytes_behind_an_array_are_refused(tmp_path):
    (tmp_path / "a.npy").write_bytes(saved(np.zeros(3)) + b"more")
    with pytest.raises(DecodeError, match=r"has more bytes than its header says \(\(3,\)\)"):
        list(read_npy(find_source(tmp_path)[0], ReadOptions()))


@pytest.mark.parametrize(
    ("content", "suffix", "library"),
    [
        (b"ARROW1\0\0", ".arrow", "pyarrow.ipc.open_file"),
        (b"FEA1", ".feather", "pyarrow.feather.read_table"),
        (b"PAR1", ".parquet", "pyarrow.parquet.read_table"),
        (b"RIFF\x24\0\0\0AVI LIST", ".avi", "torchcodec or av"),
        (b"RIFF\x24\0\0\0WEBPVP8 ", ".webp", "PIL.Image.open"),
        (b"MMIDIDX\0\0", ".idx", "the library that wrote it .Megatron's, fairseq's: name the .bin"),
    ],
)
def test_tables_and_indexes_are_known_by_their_first_bytes(tmp_path, content, suffix, library):
    (tmp_path / "a.dat").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"begins like a '{suffix}' file, .*{library}"):
        refuse_binary(find_source(tmp_path)[0])
