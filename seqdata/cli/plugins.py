"""``seqdata plugins``: the installed plugins, and the built-in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import click
from rich.table import Table

from seqdata.builtin import BACKENDS, COLLATORS, POLICIES, READERS
from seqdata.cli._report.console import (
    EXIT_DATA,
    format_examples,
    json_option,
    print_report,
    report_errors,
)
from seqdata.detect import is_core_form
from seqdata.host import PluginInfo, default_host
from seqdata.plugin_source import SuffixClaim

_OWN = {"backends": BACKENDS, "policies": POLICIES, "collators": COLLATORS, "readers": READERS}


@click.command(epilog=format_examples("seqdata plugins", "seqdata plugins --check"))
@json_option
@click.option("--check", is_flag=True, help="Import every plugin and ask what it offers.")
@report_errors
def plugins(as_json: bool, check: bool) -> None:
    """List the installed plugins from their metadata; import none, unless with --check.

    With --check the exit code is 1 if a plugin is broken.
    """
    host = default_host()
    rows = host.check() if check else host.listing()
    own = {kind: sorted(names) for kind, names in _OWN.items()}
    claims = sorted(host.claims(), key=lambda claim: claim.suffix)
    plain = {
        "plugins": [asdict(row) for row in rows],
        "suffixes": [asdict(claim) for claim in claims],
        "core": own,
    }
    print_report(plain, _iter_lines(rows, claims, own), as_json=as_json)
    if any(row.state == "broken" for row in rows):
        raise SystemExit(EXIT_DATA)


def _iter_lines(
    rows: Sequence[PluginInfo], claims: Sequence[SuffixClaim], own: Mapping[str, Sequence[str]]
) -> Iterator[str | Table]:
    table = Table("name", "distribution", "version", "state", title="Plugins")
    for row in rows:
        table.add_row(row.name, row.distribution, row.version, row.state)
    yield table
    for claim in claims:
        ignored = " (ignored: the core opens such files)" if is_core_form(claim.suffix) else ""
        yield f"suffix {claim.suffix}: backend {claim.backend} of {claim.label}{ignored}"
    for row in rows:
        if row.cause:
            yield f"{row.name}: {row.cause}"
    for kind, names in own.items():
        yield f"core {kind}: {', '.join(names)}"
