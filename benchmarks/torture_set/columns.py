"""The libraries of the torture set, and where each keeps values and what it says about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TAR_BLOCK = 512
Span = tuple[Path, int, int]  # bytes [first, last) of a file


@dataclass(frozen=True)
class Column:
    """A library in one form.

    Args:
        reader: Module of ``readers``.
        title: What the table calls it.
        shards: Pattern of the files that hold the values.
        about: Patterns of files that only say where values lie.
        heads: Bytes at the beginning of a shard that say so, too.
        foot: The same behind them: where it begins, from the end of the shard; and its bytes.
        is_ours: Whether it runs in our environment.
    """

    reader: str
    title: str
    shards: str
    about: tuple[str, ...] = ()
    heads: int = 0
    foot: tuple[int, int] = (0, 0)
    is_ours: bool = False

    def shards_of(self, folder: Path) -> list[Path]:
        return sorted(folder.glob(self.shards))

    def metadata(self, folder: Path) -> list[list[Span]]:
        """Return what a flip in a header or an index may hit, a list of places for each kind."""
        kinds = []
        for pattern in self.about:
            kinds.append([(path, 0, path.stat().st_size) for path in sorted(folder.glob(pattern))])
        heads: list[Span] = []
        feet: list[Span] = []
        for path in self.shards_of(folder):
            size = path.stat().st_size
            if path.suffix == ".tar":
                heads += list(_headers(path))
            heads.append((path, 0, self.heads))
            begin = size - self.foot[0]
            feet.append((path, begin, begin + self.foot[1]))
        kinds += [[span for span in spans if span[2] > span[1]] for spans in (heads, feet)]
        return [spans for spans in kinds if spans]


def _headers(path: Path) -> Iterator[Span]:
    """Yield the name, size, sum and kind of each member: bytes of its header that are in use."""
    import tarfile

    with tarfile.open(path) as file:
        for member in file:
            yield path, member.offset, member.offset + 157


_ABOUT_HF = ("state.json", "dataset_info.json")
COLUMNS = (
    Column("ours", "seqdata, Arrow", "*.arrow", ("seqdata.json", "*.u32", "*.crc"),
           heads=256, foot=(256, 256), is_ours=True),
    Column("ours_tar", "seqdata, tar", "*.tar", ("seqdata-index/*",), is_ours=True),
    Column("wds", "webdataset", "*.tar"),
    Column("mds", "mosaicml-streaming", "shard.*.mds", ("index.json",), heads=400),
    Column("mds_hash", "mosaicml-streaming, `validate_hash`", "shard.*.mds", ("index.json",),
           heads=400),
    Column("ld", "litdata", "*.bin", ("index.json",), heads=400),
    Column("hf", "HF datasets, map", "*.arrow", _ABOUT_HF, heads=256, foot=(8, 8)),
    Column("hf_iterable", "HF datasets, iterable", "*.arrow", _ABOUT_HF, heads=256, foot=(8, 8)),
    Column("grain_records", "Grain, ArrayRecord", "*.array_record", heads=64,
           foot=(1 << 16, 128)),
)  # fmt: skip
