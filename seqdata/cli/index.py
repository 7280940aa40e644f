"""``seqdata index``: build the indexes of tar shards and similar files before training."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import click

from seqdata.api import open_store
from seqdata.cli._report.console import (
    backend_option,
    complete_location,
    format_bytes,
    format_examples,
    json_option,
    print_report,
    report_errors,
)
from seqdata.detect import find_opener
from seqdata.errors import ConfigError
from seqdata.protocols import SupportsIndexing
from seqdata.storage.local_files import is_remote, local_path
from seqdata.storage.remote.urls import redact_secrets


@click.command(
    short_help="Build the indexes of tar shards and other files.",
    epilog=format_examples(
        "seqdata index 'shards-{000000..000012}.tar'",
        "seqdata index folder/ --workers 8",
        "seqdata index folder/ --rebuild --json",
    ),
)
@click.argument("location", shell_complete=complete_location)
@backend_option
@click.option("--rebuild", is_flag=True, help="Rebuild indexes that exist.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=None,
    help=(
        "Worker processes; 0 or 1: threads of this process [default: one per processor, at most 8]."
    ),
)
@json_option
@report_errors
def index(
    location: str,
    backend: str | None,
    rebuild: bool,
    workers: int | None,
    as_json: bool,
) -> None:
    """Build the indexes of the files at LOCATION: a file, a folder, or braces in quotes.

    For tar shards and other indexed formats. Every file is read once. The index is written next to
    the files, in the folder seqdata-index, or in the user's cache if that folder cannot be written.
    Files that have an index are skipped; the index of files that are gone from a folder is removed.
    """
    begin = time.monotonic()
    opener: object = find_opener(location, backend=backend)
    if not isinstance(opener, SupportsIndexing):
        if not is_remote(location) and not _holds_anything(local_path(location)):
            open_store(location, backend=backend)  # raises: nothing is there
        raise ConfigError(
            "index: the location must hold files of a format with an index, such as tar shards, "
            f"but {redact_secrets(location)!r} does not. Other data needs no index; pass "
            "`--backend` for a format whose suffix no package claims."
        )
    if workers is None:
        workers = min(8, os.cpu_count() or 1)
    with ExitStack() as stack:
        executor = None
        if workers > 1:
            spawn = get_context("spawn")
            executor = stack.enter_context(ProcessPoolExecutor(workers, mp_context=spawn))
        info = opener.build_index(location, rebuild=rebuild, executor=executor)
    lines = [
        f"indexed {info['indexed']:,} of {info['shards']:,} shards, {info['sequences']:,} "
        f"sequences, {format_bytes(info['bytes'])}: {time.monotonic() - begin:.1f} s",
        *(f"written to {folder}" for folder in info["folders"]),
        f"next: seqdata stats '{redact_secrets(location)}'",
    ]
    print_report({"location": redact_secrets(location), **info}, lines, as_json=as_json)


def _holds_anything(path: Path) -> bool:
    """Return whether a path is a file, or a folder that is not empty."""
    return any(path.iterdir()) if path.is_dir() else path.exists()
