"""``seqdata plugins``: the installed plugins, and the built-in parts."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.table import Table

from seqdata.builtin import BACKENDS, COLLATORS, POLICIES, READERS
from seqdata.cli._report.console import EXIT_DATA, format_examples, make_console, report_errors
from seqdata.detect import is_core_form
from seqdata.host import default_host

_OWN = {"backends": BACKENDS, "policies": POLICIES, "collators": COLLATORS, "readers": READERS}


@click.command(epilog=format_examples("seqdata plugins", "seqdata plugins --check"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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
    if as_json:
        facts = {
            "plugins": [asdict(row) for row in rows],
            "suffixes": [asdict(claim) for claim in claims],
            "core": own,
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        out = make_console()
        table = Table("name", "distribution", "version", "state", title="Plugins")
        for row in rows:
            table.add_row(row.name, row.distribution, row.version, row.state)
        out.print(table)
        for claim in claims:
            ignored = " (ignored: the core opens such files)" if is_core_form(claim.suffix) else ""
            out.print(f"suffix {claim.suffix}: backend {claim.backend} of {claim.label}{ignored}")
        for row in rows:
            if row.cause:
                out.print(f"{row.name}: {row.cause}")
        for kind, names in own.items():
            out.print(f"core {kind}: {', '.join(names)}")
    if any(row.state == "broken" for row in rows):
        raise SystemExit(EXIT_DATA)
