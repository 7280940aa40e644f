"""``seqdata index``: what is where in tar shards, looked up once."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context

import click

from seqdata.cli._report.console import (
    backend_option,
    format_bytes,
    format_examples,
    make_console,
    report_errors,
)
from seqdata.detect import find_opener
from seqdata.errors import ConfigError
from seqdata.protocols import SupportsIndexing
from seqdata.storage.remote.urls import redact_secrets


@click.command(
    epilog=format_examples(
        "seqdata index 'shards-{000000..000012}.tar'",
        "seqdata index folder/ --workers 8",
        "seqdata index folder/ --anew --json",
    )
)
@click.argument("location")
@backend_option
@click.option("--anew", is_flag=True, help="Also of shards that have one.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=None,
    help="Processes; 0: threads of this one [default: as many as processors, at most 8].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@report_errors
def index(
    location: str, backend: str | None, anew: bool, workers: int | None, as_json: bool
) -> None:
    """Make the index of the tar shards at LOCATION: a file, a folder, or braces in quotes.

    Every shard is read once; what is where is kept beside it, in the folder seqdata-index, or in
    the user's cache where that cannot be written. Shards that have an index are left alone.
    """
    begin = time.monotonic()
    opener: object = find_opener(location, backend=backend)
    if not isinstance(opener, SupportsIndexing):
        raise ConfigError(
            f"index: {redact_secrets(location)!r} holds no tar shard that can be seen, must be a "
            "shard, a folder or list of them, or braces in quotes; other data needs no index"
        )
    if workers is None:
        workers = min(8, os.cpu_count() or 1)
    with ExitStack() as stack:
        executor = None
        if workers > 1:
            spawn = get_context("spawn")
            executor = stack.enter_context(ProcessPoolExecutor(workers, mp_context=spawn))
        facts = opener.build_index(location, anew=anew, executor=executor)
    if as_json:
        click.echo(json.dumps({"location": redact_secrets(location), **facts}, indent=2))
        return
    out = make_console()
    out.print(
        f"indexed {facts['indexed']:,} of {facts['shards']:,} shards, {facts['sequences']:,} "
        f"sequences, {format_bytes(facts['bytes'])}: {time.monotonic() - begin:.1f} s"
    )
    for folder in facts["folders"]:
        out.print(f"kept in {folder}")
    out.print(f"next: seqdata stats '{redact_secrets(location)}'")
