"""``seqdata plugins``: the installed plugins and the built-in parts, new ones, and their checks."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from seqdata.builtin import BACKENDS, COLLATORS, POLICIES, READERS
from seqdata.cli._plugins.new import write_plugin
from seqdata.cli._plugins.templates import KINDS
from seqdata.cli._report.console import (
    EXIT_DATA,
    complete_location,
    format_examples,
    iter_table,
    json_option,
    print_lines,
    print_report,
    report_errors,
)
from seqdata.detect import is_core_form
from seqdata.errors import PluginError
from seqdata.hookspecs import SEQDATA_API
from seqdata.host import CLASSES, PluginInfo, default_host
from seqdata.plugin_source import SuffixClaim
from seqdata.storage.remote.urls import redact_url

_KIT = "seqdata_testing"
_OWN = {"backends": BACKENDS, "policies": POLICIES, "collators": COLLATORS, "readers": READERS}


@click.group(
    invoke_without_command=True,
    short_help="List, check and create plugins.",
    epilog=format_examples(
        "seqdata plugins",
        "seqdata plugins --check",
        "seqdata plugins new fasta --kind format",
        "seqdata plugins check fasta genomes/",
    ),
)
@json_option
@click.option("--check", is_flag=True, help="Import every plugin and ask what it offers.")
@click.pass_context
@report_errors
def plugins(ctx: click.Context, as_json: bool, check: bool) -> None:
    """List the installed plugins from their metadata; only --check imports them.

    With --check the exit status is 1 if a plugin is broken.
    """
    if ctx.invoked_subcommand is not None:
        if check:
            raise click.UsageError(
                f"--check cannot be combined with a command, but {ctx.invoked_subcommand!r} is "
                "given"
            )
        if as_json:
            raise click.UsageError(
                f"--json must come after {ctx.invoked_subcommand!r}, but comes before it"
            )
        return
    host = default_host()
    rows = host.check() if check else host.listing()
    own = {kind: sorted(names) for kind, names in _OWN.items()}
    claims = sorted(host.claims(), key=lambda claim: (claim.label, claim.backend, claim.suffix))
    classes = {point.name: point.value for point in metadata.entry_points(group=CLASSES)}
    plain = {
        "plugins": [asdict(row) for row in rows],
        "suffixes": [asdict(claim) for claim in claims],
        "classes": classes,
        "core": own,
        "api": SEQDATA_API,
    }
    print_report(plain, _iter_lines(rows, claims, classes, own), as_json=as_json)
    if any(row.state == "broken" for row in rows):
        raise SystemExit(EXIT_DATA)


@plugins.command(
    short_help="Write the package of a new plugin.",
    epilog=format_examples(
        "seqdata plugins new fasta --kind format",
        "seqdata plugins new by-cost --kind policy by-cost/",
    ),
)
@click.argument("name")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--kind", required=True, type=click.Choice(sorted(KINDS)), help="What it offers.")
@json_option
@report_errors
def new(name: str, folder: Path | None, kind: str, as_json: bool) -> None:
    """Write the package of a new plugin into FOLDER [default: seqdata-NAME].

    It is complete: it installs, is found by its name and the suffix of its files, and its tests
    pass. Files that are there are never overwritten.
    """
    files = write_plugin(name, kind, folder)
    root = files[0].parent
    lines = [f"wrote {path}" for path in files]
    lines.append(f"next: cd {root}; pip install -e '.[test]'; pytest")
    print_report({"folder": str(root), "files": list(map(str, files))}, lines, as_json=as_json)


@plugins.command(
    short_help="Check the promises of a backend on your data.",
    epilog=format_examples("seqdata plugins check fasta genomes/chr1.fasta"),
)
@click.argument("name")
@click.argument("location", shell_complete=complete_location)
@json_option
@report_errors
def check(name: str, location: str, as_json: bool) -> None:
    """Check that the backend NAME keeps its promises on the data at LOCATION.

    All of the data is read; damage is done to copies. The exit status is 1 if a check fails.
    """
    results = []
    for result in _check_backend(name, location):
        results.append(asdict(result))
        if not as_json:
            text = f": {result.text}" if result.text else ""
            print_lines([f"{result.state:7} {result.name}{text}"])
    counts = Counter(result["state"] for result in results)
    summary = ", ".join(f"{counts[state]} {state}" for state in ("ok", "failed", "skipped"))
    plain = {"backend": name, "location": redact_url(location), "checks": results}
    print_report(plain, [summary], as_json=as_json)
    if counts["failed"]:
        raise SystemExit(EXIT_DATA)


def _check_backend(name: str, location: str) -> Iterator[Any]:
    """Yield the results of the conformance kit's checks of a backend on data.

    Args:
        name: Name of the backend.
        location: The data.

    Raises:
        PluginError: If the backend or the conformance kit is not installed.
    """
    default_host().backend(name)
    try:
        kit = importlib.import_module(f"{_KIT}.locations")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != _KIT:
            raise
        raise PluginError(
            "plugins check: needs the package seqdata-testing, which has the checks, but it is not "
            "installed; pip install 'lightning-seqdata[testing]'"
        ) from error
    yield from kit.check_location(location, name)


def _iter_lines(
    rows: Sequence[PluginInfo],
    claims: Sequence[SuffixClaim],
    classes: Mapping[str, str],
    own: Mapping[str, Sequence[str]],
) -> Iterator[str | Text]:
    titles = ("name", "distribution", "version", "api", "state")
    cells = [(row.name, row.distribution, row.version, str(row.api), row.state) for row in rows]
    yield from iter_table(titles, cells, left=set(titles) - {"api"})
    for row in rows:
        for kind, offered in row.offers.items():
            yield f"{kind} {', '.join(offered) or '(names are known with --check)'}: of {row.name}"
    for name, path in sorted(classes.items()):
        yield f"class {name}: {path}"
    for (backend, label), found in groupby(claims, lambda claim: (claim.backend, claim.label)):
        suffixes = [
            f"{claim.suffix} (ignored: the core opens such files)"
            if is_core_form(claim.suffix)
            else claim.suffix
            for claim in found
        ]
        noun = "suffix" if len(suffixes) == 1 else "suffixes"
        yield f"{noun} {', '.join(suffixes)}: backend {backend} of {label}"
    for row in rows:
        if row.cause:
            yield f"{row.name}: {row.cause}"
    for kind, names in own.items():
        yield f"core {kind}: {', '.join(names)}"
