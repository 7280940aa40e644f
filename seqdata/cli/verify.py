"""``seqdata verify``: compares every byte of a store with its digests and checksums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from seqdata.api import open_store
from seqdata.cli._report.console import (
    EXIT_DATA,
    backend_option,
    format_bytes,
    format_examples,
    json_option,
    make_console,
    print_lines,
    print_report,
    report_errors,
    stores_argument,
)
from seqdata.detect import detect_backend, find_opener
from seqdata.errors import ConfigError
from seqdata.protocols import SupportsAudit
from seqdata.storage.arrow.audit import audit_arrow
from seqdata.storage.braces import split_location
from seqdata.storage.find_files import find_files
from seqdata.storage.integrity.audit import (
    AuditReport,
    BytesProgressFn,
    audit_by_reading,
    copy_damaged_bytes,
)
from seqdata.storage.local_files import is_remote, local_path
from seqdata.storage.remote.urls import redact_secrets, redact_url

_MAX_SHOWN = 20  # most findings of one file; --json has up to MAX_FINDINGS


@click.command(
    short_help="Compare every byte of a store with its checksums.",
    epilog=format_examples(
        "seqdata verify store/",
        "seqdata verify books-1/ books-2/",
        "seqdata verify store/ --shard 17 --keep-bad bad/",
        "seqdata verify store/ --json",
    ),
)
@stores_argument
@backend_option
@click.option("--shard", type=click.IntRange(min=0), help="Index of the only shard to check.")
@click.option("--repair-index", "repair", is_flag=True, help="Rebuild the indexes of files.")
@json_option
@click.option(
    "--keep-bad",
    "keep",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to copy damaged bytes to, at most 1 MiB each.",
)
@report_errors
def verify(
    stores: tuple[str, ...],
    backend: str | None,
    shard: int | None,
    repair: bool,
    as_json: bool,
    keep: Path | None,
) -> None:
    """Compare every file of STORE with its digest and every sequence with its checksums.

    Damaged sequences are named: at most 20 of a file, with --json 1,000. Files of other programs
    have no checksums: they are read completely, and reported as unverified. The exit status is 1 if
    something is damaged. Several stores are verified one after the other. Only damaged and
    unverified files are listed; --json lists every file.
    """
    if shard is not None and len(stores) > 1:
        raise ConfigError(
            f"verify: `--shard` requires a single store, but {len(stores)} are given. Verify the "
            "one that has it."
        )
    if keep is not None:
        _refuse_urls(stores)
    reports_of = {  # printed after the bar
        store: list(_iter_reports(store, backend, shard, repair=repair)) for store in stores
    }
    reports = [report for own_reports in reports_of.values() for report in own_reports]
    damages = sum(report.damages for report in reports)
    verified = all(report.by != "structure" for report in reports)
    location = ", ".join(map(redact_secrets, stores))
    files = [asdict(report) for report in reports]
    plain = {"location": location, "damages": damages, "verified": verified, "files": files}
    print_report(plain, _iter_lines(reports_of), as_json=as_json)
    if keep is not None:
        kept = _copy_damaged(reports_of, keep)
        print_lines([] if as_json else [f"kept {path}" for path in kept])
    if damages:
        raise SystemExit(EXIT_DATA)


def _iter_reports(
    store: str, backend: str | None, shard: int | None, *, repair: bool
) -> Iterator[AuditReport]:
    opener: object = find_opener(store, backend=backend)
    if isinstance(opener, SupportsAudit):
        relay = _ProgressRelay()
        total, reports = opener.audit(store, shard=shard, repair=repair, on_progress=relay)
        with _progress_bar(store, total, of="bytes") as relay.on_progress:
            yield from reports
        return
    if repair:
        raise ConfigError(
            f"verify: `--repair-index` must be left out: {redact_url(store)!r} is read without an "
            "index"
        )
    if (backend or detect_backend(store)) == "arrow":
        relay = _ProgressRelay()
        audited = audit_arrow(store, shard=shard, on_progress=relay)
        if audited is not None:
            with _progress_bar(store, audited[0], of="bytes") as relay.on_progress:
                yield from audited[1]
            return
    opened = open_store(store, backend=backend)
    if shard is not None:
        raise ConfigError(
            f"verify: `--shard` cannot be used with {redact_url(store)!r}, which is not a store of "
            "seqdata and is read as a whole. Leave it out."
        )
    with _progress_bar(store, len(opened), of="sequences") as on_progress:
        yield audit_by_reading(opened, on_progress)


@dataclass(slots=True)
class _ProgressRelay:
    """Forwards the number of bytes that were read to the bar, once there is one."""

    on_progress: BytesProgressFn | None = None

    def __call__(self, count: int) -> None:
        if self.on_progress is not None:
            self.on_progress(count)


@contextmanager
def _progress_bar(store: str, total: int, *, of: str) -> Iterator[BytesProgressFn]:
    """Show a bar with rate and time left within the block, if standard error is a terminal."""
    err = make_console(stderr=True)
    if not err.is_terminal:
        yield _ignore_progress
        return
    counts = (
        (DownloadColumn(), TransferSpeedColumn())
        if of == "bytes"
        else (TextColumn("{task.completed:,} of {task.total:,} sequences"),)
    )
    parts = (TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn())
    with Progress(*parts, console=err, transient=True) as bar:
        task = bar.add_task(f"verifying {redact_url(store)}", total=total)
        yield lambda count: bar.advance(task, count)


def _ignore_progress(_: int) -> None:
    """Ignore progress: a disabled bar of rich before 15 prints an empty line."""


def _iter_lines(reports_of: Mapping[str, Sequence[AuditReport]]) -> Iterator[str | Text]:
    """Yield a line for each store, after lines for its damaged files and for unverified ones.

    If no file of the store has checksums, unverified files have no lines of their own.
    """
    for store, reports in reports_of.items():
        name = redact_secrets(store)
        damages = sum(report.damages for report in reports)
        unverified = [report for report in reports if report.by == "structure"]
        for report in reports:
            if report.damages:
                yield from _iter_damage_lines(report)
        if len(unverified) < len(reports):
            yield from _list_unverified(unverified)
        if damages:
            found = _format_damages(damages)
            yield f"{name}: damaged in {found}: restore these files, or write the store again"
        elif unverified:
            missing = "there are no checksums of sequences; all could be read, sizes are right"
            yield f"{name}: unverified: {missing} ({_format_contents(reports)})"
        else:
            yield f"{name}: every byte is as written ({_format_contents(reports)})"


def _format_contents(reports: Sequence[AuditReport]) -> str:
    """Return the files, sequences and bytes that were read: ``3 files, 40 sequences, 1.2 KiB``."""
    files = f"{len(reports):,} file" + ("s" if len(reports) != 1 else "")
    of_data = [report for report in reports if report.shard is not None] or reports
    count = sum(report.sequences for report in of_data)
    sequences = f"{count:,} sequence" + ("s" if count != 1 else "")
    size = sum(report.bytes or 0 for report in reports)
    return ", ".join([files, sequences, *([format_bytes(size)] if size else [])])


def _iter_damage_lines(report: AuditReport) -> Iterator[str | Text]:
    damages = _format_damages(report.damages)
    yield Text(f"{_format_name(report)}: DAMAGED in {damages}", style="red")
    for finding in report.findings[:_MAX_SHOWN]:
        yield f"  {finding.text}"
    if len(report.findings) > _MAX_SHOWN:
        more = "lists them" if report.damages == len(report.findings) else "lists some of them"
        yield f"  and {report.damages - _MAX_SHOWN:,} more; --json {more}"


def _list_unverified(reports: Sequence[AuditReport]) -> Iterator[str]:
    """Yield the files without checksums of a store in which others have them."""
    for report in reports[:_MAX_SHOWN]:
        yield f"{_format_name(report)}: unverified, {report.sequences:,} sequences"
    if len(reports) > _MAX_SHOWN:
        yield f"and {len(reports) - _MAX_SHOWN:,} more unverified files; --json lists them"


def _format_name(report: AuditReport) -> str:
    return report.file if report.shard is None else f"shard {report.shard} ({report.file})"


def _format_damages(count: int) -> str:
    return "1 place" if count == 1 else f"{count:,} places"


def _refuse_urls(stores: Sequence[str]) -> None:
    """Raise if a store is remote, so that its damaged bytes cannot be kept."""
    for part in (part for store in stores for part in split_location(store)):
        if is_remote(part):
            raise ConfigError(
                f"verify: `--keep-bad` requires files on this machine, but "
                f"{redact_url(part)!r} is a URL. Copy it to this machine first, or leave the "
                "option out."
            )


def _copy_damaged(reports_of: Mapping[str, Sequence[AuditReport]], folder: Path) -> list[Path]:
    """Copy the damaged bytes of all findings, and note the number that cannot be copied."""
    copies: dict[Path, None] = {}  # unique, in order
    lost = 0
    for store, reports in reports_of.items():
        for finding in (finding for report in reports for finding in report.findings):
            root = _find_root(store, str(finding.details.get("file")))
            path = None if root is None else copy_damaged_bytes(root, finding, folder)
            if path is None:
                lost += 1
            else:
                copies[path] = None
    if lost:
        note = (
            f"note: nothing is saved of {_format_damages(lost)}: their bytes are unknown, or their "
            "file was not found. Verify such a file alone"
        )
        print_lines([note], stderr=True)
    return list(copies)


def _find_root(store: str, name: str) -> Path | None:
    """Return the folder in which a store has a file of this name; None if it is not unique.

    A store may be a folder, a file, or a glob, braces or several of these, whose files are named
    by their paths below the common folder.
    """
    roots: dict[Path, None] = {}
    for top in _iter_paths(store):
        for root in (top, *top.parents):
            path = root / name
            if path.is_file() and path.is_relative_to(top):
                roots[root] = None
    return next(iter(roots)) if len(roots) == 1 else None


def _iter_paths(store: str) -> Iterator[Path]:
    """Yield the files and folders that a local location names."""
    if local_path(store).exists():
        yield local_path(store)
        return
    found = find_files(store)
    yield from (found.root / name for name in found.names)
