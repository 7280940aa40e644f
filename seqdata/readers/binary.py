"""Formats of one sequence per file, and binary formats whose bytes are not timesteps.

Format ``npy`` is one array per file, whose first dimension are the timesteps; ``bytes`` and
``text`` are one sequence of uint8 per file. Known binary formats are recognized by suffix and first
bytes, and refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np

from seqdata.errors import ConfigError, DecodeError
from seqdata.readers.source import ReadOptions, SourceFile

_AUDIO = "soundfile.read or torchaudio.load"
_IMAGE = "PIL.Image.open or torchvision.io.read_image"
_VIDEO = "torchcodec or av"
_SAFE = "safetensors.numpy.load_file"
_TORCH = "torch.load(..., weights_only=True)"

LIBRARY_BY_SUFFIX: Mapping[str, str] = {
    **dict.fromkeys((".wav", ".flac", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".au"), _AUDIO),
    **dict.fromkeys((".mp3", ".m4a", ".aac", ".wma"), "torchaudio.load or librosa.load"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp"), _IMAGE),
    **dict.fromkeys((".mp4", ".avi", ".mkv", ".mov", ".webm"), _VIDEO),
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".he5"), "h5py.File"),
    **dict.fromkeys((".nc", ".nc4", ".cdf", ".grib", ".grb", ".zarr"), "xarray.open_dataset"),
    **dict.fromkeys((".xls", ".xlsx", ".ods"), "pandas.read_excel"),
    **dict.fromkeys((".zip", ".7z", ".rar"), "a program that unpacks it"),
    ".gz": "gzip.open",
    ".bz2": "bz2.open",
    ".xz": "lzma.open",
    ".zst": "pyarrow.CompressedInputStream",
    **dict.fromkeys((".lz4", ".z"), "a program that decompresses it"),
    **dict.fromkeys((".tgz",), "tarfile.open, or decompress it to .tar"),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), "pickle, if you trust its author"),
    **dict.fromkeys((".pt", ".pth", ".ckpt"), _TORCH),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "sqlite3 or pandas.read_sql"),
    ".npz": "numpy.load (an archive of several arrays)",
    ".safetensors": _SAFE,
    ".mat": "scipy.io.loadmat",
    ".edf": "mne.io.read_raw_edf",
    ".bdf": "mne.io.read_raw_bdf",
    ".tfrecord": "tensorflow or tfrecord",
    ".avro": "fastavro.reader",
    ".orc": "pyarrow.orc.read_table",
    ".mid": "pretty_midi or mido",
    ".midi": "pretty_midi or mido",
    ".pdf": "pypdf.PdfReader",
    ".docx": "python-docx",
    ".arrow": "pyarrow.ipc.open_file",
    ".feather": "pyarrow.feather.read_table",
    ".parquet": "pyarrow.parquet.read_table",
    ".idx": "the library that wrote it (Megatron's, fairseq's: name the .bin file; plugin "
    "seqdata-tokens)",
    ".tsv": "pandas.read_csv(..., sep='\\t')",
    ".json": "json.load (a file with one object per line ends in .jsonl)",
}
"""Suffix -> library or program that reads such container files."""

_NPY_MAGIC = b"\x93NUMPY"
_OTHER_NUMPY = (b"\x80", b"PK")  # of pickled objects and of archives

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"fLaC", ".flac"),
    (b"OggS", ".ogg"),
    (b"ID3", ".mp3"),
    (b"\x1f\x8b", ".gz"),
    (b"BZh", ".bz2"),
    (b"\xfd7zXZ", ".xz"),
    (b"\x28\xb5\x2f\xfd", ".zst"),
    (b"PK\x03\x04", ".zip"),
    (b"\x89HDF", ".h5"),
    (b"\x89PNG", ".png"),
    (b"\xff\xd8\xff", ".jpg"),
    (b"%PDF-", ".pdf"),
    (b"SQLite format 3", ".sqlite"),
    (b"ARROW1", ".arrow"),
    (b"FEA1", ".feather"),
    (b"PAR1", ".parquet"),
    (b"MMIDIDX", ".idx"),
)
"""First bytes -> the usual suffix of such files."""
_RIFF = {b"AVI ": ".avi", b"WEBP": ".webp"}  # bytes 8 to 12 of files that begin with RIFF


def detect_format(file: SourceFile) -> str | None:
    """Return the suffix of a known binary format, from a file's name or first bytes; else None."""
    ending = file.path.suffix.lower()
    if ending in LIBRARY_BY_SUFFIX:
        return ending
    with file.path.open("rb") as opened:
        first_bytes = opened.read(16)
    if first_bytes.startswith(b"RIFF"):
        return _RIFF.get(first_bytes[8:12], ".wav")
    return next(
        (format_name for begin, format_name in _SIGNATURES if first_bytes.startswith(begin)), None
    )


def refuse_binary(files: Iterable[SourceFile]) -> None:
    """Raise if files that would be read as bytes have a known binary format.

    The first file of each suffix is checked.

    Raises:
        ConfigError: If a file has a known binary format; names a library that reads the file.
    """
    first: dict[str, SourceFile] = {}
    for file in files:
        first.setdefault(file.path.suffix.lower(), file)
    for ending, file in first.items():
        format_name = detect_format(file)
        if format_name is None:
            continue
        evidence = (
            f"ends in {ending!r}"
            if format_name == ending
            else f"begins like a {format_name!r} file"
        )
        raise ConfigError(
            f"source: file {str(file.path)!r} {evidence}, and the bytes of such a file are not "
            f"timesteps. Read it with {LIBRARY_BY_SUFFIX[format_name]} and pass the arrays to "
            "`seqdata.write_store`, or pass `--format bytes` to write its bytes as they are."
        )


def read_npy(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Yield the array of each file, (T, ...), with its relative path as id; never unpickles.

    Raises:
        DecodeError: If a file is not a ``.npy`` file of one array, has bytes after the array, or
            holds objects or a single number.
        ConfigError: If an option for tables is given.
    """
    name = options.one_field("npy")
    for file in files:
        try:
            with file.path.open("rb") as stream:
                _check_npy_header(file, stream.read(len(_NPY_MAGIC)))
                stream.seek(0)
                array = np.load(stream, allow_pickle=False)
                rest = len(stream.read(1)) if isinstance(array, np.ndarray) else 0
        except (ValueError, EOFError, OSError, SyntaxError, TokenError, BadZipFile) as error:
            raise _make_error(file, f"cannot be read ({error})") from error
        if not isinstance(array, np.ndarray):
            raise _make_error(file, "is an archive of several arrays")
        if rest:
            raise _make_error(file, f"has more bytes than its header says ({array.shape})")
        if array.ndim == 0:
            raise _make_error(file, "holds a single number")
        yield {"id": file.key, name: array}


def _check_npy_header(file: SourceFile, begin: bytes) -> None:
    """Raise if a file begins neither as one of NumPy nor as a pickle or an archive.

    Raises:
        DecodeError: If it does not, such as the raw numbers that dolma writes.
    """
    if begin and not begin.startswith((_NPY_MAGIC, *_OTHER_NUMPY)):
        raise DecodeError.at(
            f"file {str(file.path)!r}: cannot be read (it begins with {begin!r} and has no "
            "header of NumPy), but must be a .npy file of one array. Raw numbers, such as the "
            "tokens that dolma writes, are opened by `open_store(path, "
            "backend=Tokens(dtype='uint16'))` of the plugin seqdata-tokens, with the dtype that "
            "they were written with",
            file=str(file.path),
        )


def _make_error(file: SourceFile, problem: str) -> DecodeError:
    return DecodeError.at(
        f"file {str(file.path)!r}: {problem}, but must be a .npy file of one array of numbers "
        "(timesteps, "
        "...). Save it with numpy.save.",
        file=str(file.path),
    )


def read_bytes(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Yield the bytes of each file, uint8 (T,), with its relative path as id.

    Raises:
        ConfigError: If an option for tables is given.
    """
    name = options.one_field("bytes")
    for file in files:
        yield _make_sequence(file, name, file.path.read_bytes())


def read_text(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    r"""Yield each file's text as UTF-8 bytes, uint8 (T,), with ``\n`` for ``\r\n`` and no BOM.

    Raises:
        DecodeError: If a file is not UTF-8.
        ConfigError: If an option for tables is given.
    """
    name = options.one_field("text")
    for file in files:
        raw = file.path.read_bytes()
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DecodeError.at(
                f"file {str(file.path)!r}: byte {error.start} is {raw[error.start]:#04x}, but "
                "must be "
                "UTF-8. Convert it, or use the format 'bytes'.",
                file=str(file.path),
                offset=error.start,
            ) from error
        yield _make_sequence(file, name, text.replace("\r\n", "\n").encode())


def _make_sequence(file: SourceFile, name: str, raw: bytes) -> dict[str, Any]:
    return {"id": file.key, name: np.frombuffer(raw, dtype=np.uint8)}
