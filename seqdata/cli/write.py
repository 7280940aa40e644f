"""``seqdata write``: writes existing files as a store."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from seqdata.api import open_store, write_store
from seqdata.builtin import READERS
from seqdata.cli._report.console import (
    backend_option,
    complete_location,
    format_bytes,
    format_examples,
    print_lines,
    report_errors,
)
from seqdata.cli.stats import describe_store, format_field
from seqdata.detect import TAR, detect_backend, detect_backend_at, holds_store
from seqdata.errors import ConfigError, SeqDataError, must_be
from seqdata.host import PluginHost, default_host
from seqdata.protocols import Reader, Store, SupportsTableLogs
from seqdata.readers.binary import refuse_binary
from seqdata.readers.source import (
    ReadOptions,
    SourceFile,
    count_suffixes,
    drop_suffixes,
    fetch_source,
    find_source,
    find_suffix,
)
from seqdata.readers.tables import find_table_format
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.arrow.write import SHARD_BYTES
from seqdata.storage.braces import JOINED, split_location
from seqdata.storage.compressed_files import strip_compression
from seqdata.storage.fields import ID_FIELD
from seqdata.storage.find_files import has_table_log, iter_names, warn_left_out
from seqdata.storage.foreign.file_discovery import has_table_suffix
from seqdata.storage.local_copies import LocalCopies
from seqdata.storage.local_files import is_remote, local_path
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.views import SequenceStore
from seqdata.storage.writing.progress import FIRST_STEP, SECOND_STEP, ProgressBar, progress_bar
from seqdata.storage.writing.shards import count_unfinished
from seqdata.storage.writing.staging_dir import is_first_pass_finished


def report_resume(out: str) -> int:
    """Report the result of an earlier writer in a folder; return the number of its sequences."""
    shards, sequences = count_unfinished(Path(out))
    lines = []
    if shards:
        lines = [f"continuing after shard {shards - 1} ({sequences:,} sequences)"]
    elif is_first_pass_finished(Path(out)):
        lines = ["continuing with the second pass"]
    print_lines(lines, stderr=True)
    return sequences


def report_kept(out: str) -> None:
    """Report the result of a writer that stopped, and how to continue."""
    shards, sequences = count_unfinished(Path(out))
    lines = []
    if shards:
        lines = [
            f"note: {shards} finished shards ({sequences:,} sequences) are kept: the same "
            "command continues after them, or starts again with --no-resume"
        ]
    elif is_first_pass_finished(Path(out)):
        lines = [
            "note: all sequences are kept in the order given: the same command continues with the "
            "second pass, or starts again with --no-resume"
        ]
    print_lines(lines, stderr=True)


@dataclass(slots=True)
class ReadProgress:
    """Progress bar of reading files: bytes read, and sequences written.

    Attributes:
        bar: The bar; None if it is not shown.
        resumed: Number of sequences that an earlier writer left.
        bytes_read: Number of bytes of the files that were read.
        sequences: Number of sequences that the last report counted.
        is_reading: Whether files are read, which they are not in a second pass.
    """

    bar: ProgressBar | None
    resumed: int
    bytes_read: int = 0
    sequences: int = 0
    is_reading: bool = True

    def track(self, files: Iterable[SourceFile]) -> Iterator[SourceFile]:
        """Yield the files, and count their bytes once they are read."""
        for file in files:
            yield file
            self.bytes_read += file.path.stat().st_size

    def on_progress(self, sequences: int, size: int) -> None:
        """Update the bar; a lower count than before is the first of a second pass."""
        if self.bar is None:
            return
        if sequences < self.sequences:
            self.bar.begin(SECOND_STEP, self.sequences)
            self.is_reading = False
        self.sequences = sequences
        done = self.bytes_read if self.is_reading else sequences
        if sequences <= self.resumed:
            self.bar.restart(sequences, done)
        self.bar.update(sequences, size, done)


STORE = "store"
_SUGGESTED_TOKENS = 16_384  # timesteps, in the suggested next command


def _single_source(context: click.Context, _: click.Parameter, sources: tuple[str, ...]) -> str:
    """Return the only source; a shell passes several if a glob is not in quotes."""
    if len(sources) > 1:
        raise click.BadArgumentUsage(
            f"{len(sources)} sources are given, and there must be one. Put a glob in quotes, so "
            "that "
            f"the shell leaves it alone: seqdata write '*{Path(sources[0]).suffix}' OUT",
            context,
        )
    return sources[0]


def _parse_missing(
    context: click.Context, _: click.Parameter, text: str | None
) -> str | float | None:
    """Return a rule for missing values: a name, or the number that replaces them."""
    if text in (None, "nan", "drop", "error"):
        return text
    try:
        return float(text) if "." in text or "e" in text.lower() else int(text)
    except ValueError:
        raise click.BadArgumentUsage(
            f"--missing must be nan, drop, error or a number, but is {text!r}", context
        ) from None


def _parse_character(
    context: click.Context, option: click.Parameter, text: str | None
) -> str | None:
    """Return an option that is one character."""
    character = "\t" if text == "\\t" else text
    if character is not None and len(character) != 1:
        raise click.BadArgumentUsage(
            f"{option.opts[0]} must be one character, such as ';', but is {text!r}", context
        )
    return character


@click.command(
    short_help="Write files, tables or a store as a store.",
    epilog=format_examples(
        "seqdata write 'logs/**/*.txt' store/            a sequence of bytes per file",
        "seqdata write arrays/ store/ --field mel      .npy, (timesteps, ...) each",
        "seqdata write meters.csv store/ --group site  a sequence per site",
        "seqdata write meters.csv store/ --group site --order hour",
        "seqdata write rows.jsonl store/ --id name     a row per sequence",
        "seqdata write rows.jsonl store/ --axes text=text --axes vector=none",
        "seqdata write arrays/ shards/ --to webdataset   tar shards (plugin)",
        "seqdata write arrays/ mixed/ --shuffle 0      in the random order of seed 0",
        "seqdata write s3://bucket/shards store/       a store, in another form",
    ),
)
@click.argument(
    "source",
    nargs=-1,
    required=True,
    metavar="SOURCE",
    callback=_single_source,
    shell_complete=complete_location,
)
@click.argument("out", type=click.Path(file_okay=False))
@backend_option
@click.option(
    "--format",
    "input_format",
    default="auto",
    show_default=True,
    help="store, bytes, text, npy, csv, jsonl, parquet, or a plugin's; auto: found from the files.",
)
@click.option(
    "--to",
    "format",
    default="arrow",
    show_default=True,
    help="arrow, or webdataset: tar shards.",
)
@click.option("--field", help="Name of the field of files that hold one array [default: x].")
@click.option("--group", metavar="COLUMN", help="Column; rows of equal value are one sequence.")
@click.option(
    "--order",
    metavar="COLUMN",
    help="Column that the rows of each --group are sorted by: the time.",
)
@click.option(
    "--missing",
    metavar="RULE",
    callback=_parse_missing,
    help="Missing values of the rows of --group: nan, drop (the row), error, or a number "
    "[default: nan, with a warning].",
)
@click.option(
    "--delimiter",
    metavar="CHARACTER",
    callback=_parse_character,
    help="Character between the columns of CSV files; \\t is a tab [default: ,].",
)
@click.option(
    "--decimal",
    metavar="CHARACTER",
    callback=_parse_character,
    help="Decimal point of numbers in CSV files [default: .].",
)
@click.option(
    "--thousands",
    metavar="CHARACTER",
    callback=_parse_character,
    help="Separator of thousands in numbers of CSV files [default: none].",
)
@click.option(
    "--comment",
    metavar="CHARACTER",
    callback=_parse_character,
    help="Lines of CSV files that begin with it are ignored [default: none].",
)
@click.option(
    "--id",
    "key",
    metavar="COLUMN",
    help="Column that names a row's sequence; '': sequences are numbered, and ids kept as a field.",
)
@click.option(
    "--axes",
    "axes",
    metavar="FIELD=AXIS",
    multiple=True,
    help="Axis that a field runs along; none: a vector per sequence. May be repeated.",
)
@click.option(
    "--shard-bytes",
    type=click.IntRange(min=1),
    default=SHARD_BYTES,
    show_default=True,
    help="Size of a shard, in bytes.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing store.")
@click.option(
    "--resume/--no-resume",
    default=True,
    show_default=True,
    help="Continue an interrupted writing, or start again.",
)
@click.option(
    "--shuffle",
    metavar="SEED",
    type=click.IntRange(min=0, max=(1 << 64) - 1),
    help="Write in a random order that SEED determines; ids stay with their sequences.",
)
@report_errors
def write(
    source: str,
    out: str,
    backend: str | None,
    input_format: str,
    format: str,
    field: str | None,
    group: str | None,
    order: str | None,
    missing: Any,
    delimiter: str | None,
    decimal: str | None,
    thousands: str | None,
    comment: str | None,
    key: str | None,
    axes: tuple[str, ...],
    shard_bytes: int,
    overwrite: bool,
    resume: bool,
    shuffle: int | None,
) -> None:
    """Write the sequences of SOURCE, a file, folder, glob or store, as a store in the folder OUT.

    SOURCE and OUT may be URLs; files at a URL that are not a store are copied to this machine
    first. A Delta table needs the package seqdata-frames. Quote a glob, so that the shell does not
    expand it; ** is any depth of folders. After an interruption the same command continues.
    """
    begin = time.monotonic()
    name = f"source {redact_url(source)!r}"
    field_axes = parse_axes(axes)
    single = [name for name, axis in (field_axes or {}).items() if axis is None and group]
    options = ReadOptions(field=field, group=group, order=order, missing=missing, id=key or None)
    options = replace(
        options, per_sequence=tuple(single), delimiter=delimiter, decimal=decimal,
        thousands=thousands, comment=comment,
    )  # fmt: skip
    reader_options = _list_reader_options(options)
    as_store = input_format in ("auto", STORE) and not reader_options
    if not as_store and (backend is not None or input_format == STORE):
        store_option = "--format store" if backend is None else "--backend"
        others = reader_options or [f"--format {input_format}"]
        raise ConfigError(
            f"{name}: `{store_option}` opens a store, which has fields and ids, and cannot be "
            f"combined with {_join_options(others)}. Leave one of them out."
        )
    files = None if backend else list_table_files(source, default_host())
    existing = open_source(source, backend, skip=out) if as_store and files is None else None
    if existing is None and input_format == STORE:
        raise ConfigError(
            f"{name}: must be a store with `--format store`, but is not. Leave the option out."
        )
    write_to = partial(
        write_store, out, format=format, axes=field_axes, shard_bytes=shard_bytes,
        key="" if key == "" else ID_FIELD, overwrite=overwrite, resume=resume, shuffle=shuffle,
    )  # fmt: skip
    try:
        if existing is not None:
            store: Store = write_to(existing)
        else:
            store = _read_source(files or source, out, input_format, options, write_to)
    except (SeqDataError, OSError):
        report_kept(out)
        raise
    print_lines(_iter_lines(store, out, time.monotonic() - begin))


def _list_reader_options(options: ReadOptions) -> list[str]:
    """Return the options of the command that were given for the reader."""
    unset = ReadOptions()
    names = (
        "field", "group", "order", "missing", "id", "delimiter", "decimal", "thousands", "comment",
    )  # fmt: skip
    return [f"--{name}" for name in names if getattr(options, name) != getattr(unset, name)]


def _join_options(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def list_table_files(source: str, host: PluginHost) -> str | None:
    """Return the files of a source that is a table with a log (Delta), joined; None for others.

    Raises:
        SeqDataError: If the log cannot be read, or files do not hold the rows as they are.
    """
    if is_remote(source):
        is_file = find_suffix(source) in READERS and not source.endswith("/")
        may_have_log = not is_file and detect_backend(source) == "arrow" and not holds_store(source)
    else:
        may_have_log = has_table_log(local_path(source))
    name = host.backend_of_tables("parquet") if may_have_log else None
    backend: Any = None if name is None else host.backend(name)
    if not isinstance(backend, SupportsTableLogs):
        return None
    files = backend.list_files(source)
    return None if files == [source] else JOINED.join(files)


def open_source(
    source: str, backend: str | None = None, *, skip: str | None = None
) -> Store | None:
    """Return a source as a store, if it is one or its files can be opened as one; None otherwise.

    Args:
        source: A path, a glob or a URL.
        backend: Name of the backend that opens it; None: detected from the source.
        skip: A folder whose files a glob leaves out.

    Raises:
        ConfigError: If it is a URL that is invalid.
        DataError: If the store is incomplete.
        RemoteReadError: If the URL cannot be read.
    """
    if backend is not None:
        return open_store(source, backend=backend)
    if is_remote(source):
        is_store = detect_backend_at(source) != "arrow" or holds_store(source)
        return open_store(source) if is_store else None
    path = local_path(source)
    if (path / MANIFEST).is_file():
        return open_store(source)
    form = detect_backend(source)
    if not path.exists() and ("{" not in source or form in ("arrow", "foreign")):
        return _open_matches(source, skip)
    if form == "foreign":
        return None if _has_reader(path) else open_store(source)
    if form == "arrow" or _is_read(path, form):
        return None
    if form != TAR.backend:
        return open_store(source)
    try:
        return open_store(source)
    except ConfigError:  # without an index they are read completely
        if TAR.has_name(path.name) or path.is_dir():
            return None
        raise


def _open_matches(source: str, skip: str | None) -> Store | None:
    """Return the files of a glob as a store, if one backend opens all of them; None otherwise."""
    files, _ = find_source(source, skip=skip)
    backends = {_find_backend(file.path.name, default_host()) for file in files}
    return None if len(backends) > 1 or None in backends else open_store(source)


def _find_backend(name: str, host: PluginHost) -> str | None:
    """Return the backend that opens files of a name's suffix; None if a reader or none does."""
    ending = strip_compression(find_suffix(name))
    if ending == TAR.suffix or ending in READERS:
        return None
    return "foreign" if has_table_suffix(name) else host.backend_of_suffix(name)


def _is_read(path: Path, form: str) -> bool:
    """Return whether a reader reads a file, or those of a folder that a backend opens as well."""
    if not path.is_dir():
        return strip_compression(find_suffix(path)) in READERS
    host = default_host()
    return any(
        find_suffix(name) in READERS and host.backend_of_suffix(name) == form
        for name in iter_names(path)
    )


def _has_reader(path: Path) -> bool:
    """Return whether a path is a Parquet file, or a folder with one, which a reader takes."""
    names = iter_names(path) if path.is_dir() else [path.name]
    return any(name.lower().endswith(".parquet") for name in names)


def _read_source(
    source: str,
    out: str,
    input_format: str,
    options: ReadOptions,
    write_to: partial[SequenceStore],
) -> Store:
    """Write the sequences of files of other formats; files at a URL are copied first."""
    copies = _fetch(source, input_format, options)
    with nullcontext() if copies is None else copies.explain():
        files, found = find_source(source if copies is None else copies.path, skip=out)
        warn_left_out([found if copies is None else copies.show(found)])
        # ids of tar shards have no dot after their last slash
        if write_to.keywords["format"] == TAR.backend and write_to.keywords["key"]:
            files = drop_suffixes(files)
        return _write_files(files, out, input_format, options, write_to)


def _fetch(source: str, input_format: str, options: ReadOptions) -> LocalCopies | None:
    """Return copies of the files at a URL, if a reader reads them; None for a path."""

    def check(files: list[SourceFile]) -> None:
        if input_format == "auto" and options.group is None:
            choose_reader(files, input_format, default_host(), _list_reader_options(options))

    copies = fetch_source(source, check=check)
    if copies is not None:
        first, *others = split_location(copies.location)
        shown = f"{1 + len(others)} files ({first}, ...)" if others else first
        print_lines([f"{shown}: copied to {copies.root}"], stderr=True)
    return copies


def _write_files(
    files: list[SourceFile],
    out: str,
    input_format: str,
    options: ReadOptions,
    write_to: partial[SequenceStore],
) -> Store:
    """Write the sequences that a reader yields from local files; in a random order in two passes.

    Args:
        files: The files.
        out: Location of the store.
        input_format: Name of their format; ``auto``: detected from their suffixes.
        options: Options of the reader.
        write_to: ``write_store`` with its other arguments.
    """
    if options.group is not None and input_format == "auto":
        input_format = find_table_format(files) or input_format
    read = choose_reader(files, input_format, default_host(), _list_reader_options(options))
    resumed = report_resume(out) if write_to.keywords["resume"] else 0
    total = sum(file.path.stat().st_size for file in files)
    with progress_bar(None, f"writing {redact_url(out)}", total) as bar:
        if bar is not None and write_to.keywords["shuffle"] is not None:
            bar.begin(FIRST_STEP, total)
        read_progress = ReadProgress(bar, resumed)
        return write_to(
            read(read_progress.track(files), options), progress=read_progress.on_progress
        )


def choose_reader(
    files: list[SourceFile], input_format: str, host: PluginHost, given: Sequence[str] = ()
) -> Reader:
    """Return the reader of a format, or of the suffixes of files; errors name ``given`` options.

    Raises:
        ConfigError: If the suffixes are of several formats or of a format without a reader, or
            files without a known suffix are not text.
        PluginError: If the format is unknown.
    """
    if input_format != "auto":
        return host.reader(input_format)
    bytes_reader = host.reader("bytes")
    counts = count_suffixes(files)
    readers = {ending: _find_reader(ending, host) for ending in counts}
    found = [
        readers[find_suffix(file.path)] or _find_backend(file.path.name, host) for file in files
    ]
    refuse_binary(
        file for file, form in zip(files, found, strict=True) if form in (None, bytes_reader)
    )
    have = ", ".join(f"{count} {ending or '(none)'}" for ending, count in counts.items())
    if len(set(found)) > 1:
        raise ConfigError(
            f"source: files must be of one format, but are of several ({have}). Pass `--format`, "
            "or a narrower glob."
        )
    if found[0] is None:
        raise ConfigError(
            f"source: file {str(files[0].path)!r}: must end in a suffix that a reader or an "
            f"installed package claims, but {have} are claimed by none. Pass `--format` "
            f"{', '.join(name for name in READERS if not name.startswith('.'))} or a plugin's; "
            "`--format bytes` writes the bytes of each file as one sequence, whatever they are."
        )
    if isinstance(found[0], str):
        if given:
            raise ConfigError(
                f"source: files that the backend {found[0]!r} opens ({have}) must be written "
                f"without {_join_options(given)}, which only readers of other formats take. Leave "
                f"{'it' if len(given) == 1 else 'them'} out, or pass `--format`."
            )
        raise ConfigError(
            f"source: files that the backend {found[0]!r} opens ({have}) must be opened as a "
            f"store, but were not detected as one. Pass `--backend {found[0]}`, or "
            "`--format bytes`, which writes the bytes of the files as they are."
        )
    return found[0]


def _find_reader(ending: str, host: PluginHost) -> Reader | None:
    """Return the reader of a suffix; None if there is none."""
    if ending == TAR.suffix:
        return host.reader(TAR.backend)
    ending = strip_compression(ending)  # only tables of text have two suffixes here
    return host.find("reader", ending, everywhere=False) if ending else None


def parse_axes(texts: Iterable[str]) -> dict[str, str | None] | None:
    """Return field -> axis from strings like ``tokens=text``.

    Raises:
        ConfigError: If a string does not have this form.
    """
    axes: dict[str, str | None] = {}
    for text in texts:
        name, separator, axis = text.partition("=")
        if not (name and separator and axis):
            raise ConfigError(must_be("`--axes`", "FIELD=AXIS, or FIELD=none", repr(text)))
        axes[name] = None if axis == "none" else axis
    return axes or None


def _iter_lines(store: Store, out: str, seconds: float) -> Iterator[str]:
    shards = describe_store([out], store)["shards"]
    steps = {axis: int(lengths.sum(dtype="int64")) for axis, lengths in store.lengths_of.items()}
    along = ", ".join(f"{count:,} timesteps along {axis!r}" for axis, count in steps.items())
    total = format_bytes(sum(shard["bytes"] or 0 for shard in shards))
    yield (
        f"wrote {len(store):,} sequences, {along}: {total} in {len(shards)} "
        f"shard{'s' if len(shards) != 1 else ''}, {seconds:.1f} s"
    )
    yield f"fields: {', '.join(map(format_field, store.fields, store.fields.values()))}"
    split = " --too-long split" if int(store.lengths.max()) > _SUGGESTED_TOKENS else ""
    location = shlex.quote(redact_url(out))
    yield f"next: seqdata stats {location}"
    yield (
        f"      seqdata plan {location} --batching token-budget --max-tokens {_SUGGESTED_TOKENS}"
        f"{split} --world 1,2,8"
    )
