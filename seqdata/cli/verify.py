"""``seqdata verify``: is every byte of a store what was written?

Place in the flow: a store's files -> a report and an exit code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from seqdata.cli._report.console import DATA, backend_option, console, examples, reporting, size
from seqdata.detect import form_of
from seqdata.errors import ConfigError, MissingShardError, RemoteReadError
from seqdata.open_location import opener_of
from seqdata.protocols import Auditing
from seqdata.resolve_store import open_store
from seqdata.storage.arrow.audit_remote import audit_remote
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.arrow.manifest_parser import load_manifest
from seqdata.storage.arrow.remote_manifest import manifest_at
from seqdata.storage.integrity.audit import Report, Told, audit, bytes_of, keep_bad
from seqdata.storage.integrity.audit_by_reading import read_all
from seqdata.storage.local_files import local_path
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.transport import RemoteFiles, remote_files
from seqdata.storage.remote.urls import is_remote, without_secrets

_SHOWN = 20  # findings of one file; --json has more
_WORDS = {"checksums": "ok", "digest": "ok by its digest", "structure": "unverified"}


@click.command(
    epilog=examples(
        "seqdata verify store/",
        "seqdata verify store/ --shard 17 --keep-bad bad/",
        "seqdata verify store/ --json",
    )
)
@click.argument("store")
@backend_option
@click.option("--shard", type=click.IntRange(min=0), help="Number of the one shard to look at.")
@click.option("--repair-index", "repair", is_flag=True, help="Make indexes of tar shards anew.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--keep-bad",
    "keep",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Copy damaged bytes there, at most 1 MiB each.",
)
@reporting
def verify(
    store: str,
    backend: str | None,
    shard: int | None,
    repair: bool,
    as_json: bool,
    keep: Path | None,
) -> None:
    """Compare every file of STORE with its digest and every sequence with its checksums.

    Names every sequence that is damaged. Files that others wrote have no checksums: they are read
    as a whole, and called unverified. Exit code 1 where something is damaged.
    """
    reports = list(_reports(store, backend, shard, repair=repair))  # printed when the bar is gone
    damages = sum(report.damages for report in reports)
    verified = all(report.by != "structure" for report in reports)
    kept = _keep(store, reports, keep)
    if as_json:
        facts = {"location": without_secrets(store), "damages": damages, "verified": verified}
        click.echo(json.dumps({**facts, "files": [asdict(one) for one in reports]}, indent=2))
    else:
        out = console()
        for report in reports:
            _print(out, report)
        out.print(_verdict(damages, verified))
        for path in kept:
            out.print(f"kept {path}")
    if damages:
        raise SystemExit(DATA)


def _reports(
    store: str, backend: str | None, shard: int | None, *, repair: bool
) -> Iterator[Report]:
    opener: object = opener_of(store, backend=backend)
    if isinstance(opener, Auditing):
        done = _Done()
        total, reports = opener.audit(store, shard=shard, repair=repair, told=done)
        with _bar(store, total, of="bytes") as done.told:
            yield from reports
        return
    if repair:
        raise ConfigError(
            f"verify: `--repair-index` must be left out: {store!r} is read without an index"
        )
    own = (backend or form_of(store)) == "arrow"
    if is_remote(store) and own:
        files = remote_files(store, Remote())
        if MANIFEST in _names(files):
            manifest = manifest_at(files)
            with _bar(files.location, bytes_of(manifest, shard), of="bytes") as told:
                yield from audit_remote(files, manifest, shard, told)
            return
    root = local_path(store) if own and not is_remote(store) else None
    if root is not None and (root / MANIFEST).exists():
        manifest = load_manifest(root)
        with _bar(store, bytes_of(manifest, shard), of="bytes") as told:
            yield from audit(root, manifest, shard, told)
        return
    opened = open_store(store, backend=backend)
    if shard is not None:
        raise ConfigError(
            f"verify: `--shard` is {shard}, must be left out: {store!r} is no store of ours and is "
            "read as a whole"
        )
    with _bar(store, len(opened), of="sequences") as told:
        yield read_all(opened, told)


def _names(files: RemoteFiles) -> list[str]:
    """Give the names of remote files; where they cannot be listed there must be a manifest."""
    try:
        return files.names()
    except (MissingShardError, RemoteReadError):  # a web server
        return [MANIFEST]


@dataclass(slots=True)
class _Done:
    """Hands on how many bytes were looked at, as soon as there is a bar."""

    told: Told | None = None

    def __call__(self, count: int) -> None:
        if self.told is not None:
            self.told(count)


@contextmanager
def _bar(store: str, total: int, *, of: str) -> Iterator[Told]:
    """Show a bar with rate and time left where standard error is a terminal."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield _untold
        return
    counts = (
        (DownloadColumn(), TransferSpeedColumn())
        if of == "bytes"
        else (TextColumn("{task.completed:,} of {task.total:,} sequences"),)
    )
    parts = (TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn())
    with Progress(*parts, console=err, transient=True) as bar:
        task = bar.add_task(f"verifying {store}", total=total)
        yield lambda count: bar.advance(task, count)


def _untold(_: int) -> None:
    """Show nothing: rich before 15 ends a bar that is switched off with an empty line."""


def _print(out: Console, report: Report) -> None:
    name = report.file if report.shard is None else f"shard {report.shard} ({report.file})"
    holds = f"{report.sequences:,} sequences"
    if report.bytes:
        holds += f", {size(report.bytes)}"
    if not report.damages:
        out.print(f"{name}: {_WORDS[report.by]}, {holds}")
        return
    out.print(f"{name}: DAMAGED in {report.damages:,} places, {holds}", style="red")
    for finding in report.findings[:_SHOWN]:
        out.print(f"  {finding.text}")
    if report.damages > _SHOWN:
        out.print(f"  … and {report.damages - _SHOWN:,} more; --json lists them")


def _verdict(damages: int, verified: bool) -> str:
    if damages:
        return f"{damages:,} things are damaged: restore these files, or write the store again"
    if verified:
        return "every byte is as it was written"
    return "unverified: there are no checksums of sequences; all could be read, sizes are right"


def _keep(store: str, reports: list[Report], folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    made: dict[Path, Any] = {}  # in order, each once
    for report in reports:
        for finding in report.findings:
            path = keep_bad(local_path(store), finding, folder)
            if path is not None:
                made[path] = None
    return list(made)
