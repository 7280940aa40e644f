"""``seqdata doctor``: checks of a machine, an installation, data and a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from seqdata.cli._doctor.data import check_data, open_checked
from seqdata.cli._doctor.finding import DoctorFinding
from seqdata.cli._doctor.machine import check_machine, inspect_machine
from seqdata.cli._doctor.software import check_plugins, check_software
from seqdata.cli._report.console import (
    EXIT_DATA,
    backend_option,
    complete_location,
    format_examples,
    json_option,
    print_report,
    report_errors,
)
from seqdata.cli._report.grouped_help import GroupedCommand
from seqdata.errors import ConfigError, must_be
from seqdata.host import default_host
from seqdata.storage.braces import has_url

_RUN_FILE = "seqdata-run.yaml"
_CHUNKS = 8  # batches of an update, as in `WavefrontStrategy`
_SEVERITY = ("bad", "warn", "note", "ok")
_STYLES = {"ok": "green", "note": "cyan", "warn": "yellow", "bad": "red"}
_GROUPS = {
    "How to train a model on several GPUs": (
        "model", "lanes", "chunk", "batch-size", "max-length", "chunks", "devices", "measure",
    ),
}  # fmt: skip


@click.command(
    cls=GroupedCommand,
    option_groups=_GROUPS,
    short_help="Check this machine, installation, data and runs.",
    epilog=format_examples(
        "seqdata doctor",
        "seqdata doctor store/",
        "seqdata doctor logs/version_0/seqdata-run.yaml --json",
        "seqdata doctor --leaks data.yaml",
        "seqdata doctor --model 'my_models:LM(256)' --lanes 64 --chunk 128",
    ),
)
@click.argument("config", required=False, shell_complete=complete_location)
@click.option(
    "--model",
    metavar="MODEL",
    help="Only show how to train MODEL on several GPUs: package.module:Class(arguments), a "
    "function, or a checkpoint.",
)
@click.option("--lanes", type=int, help="Lanes of all GPUs together.")
@click.option("--chunk", type=int, help="Timesteps of a lane in one step.")
@click.option("--batch-size", type=int, help="Rows of a batch of whole sequences.")
@click.option(
    "--max-length",
    type=int,
    help="Timesteps of a row with --batch-size [default: the longest sequence of CONFIG, a store].",
)
@click.option("--chunks", type=int, help="Batches of an update [default: 8].")
@click.option(
    "--devices", type=int, help="Number of GPUs [default: those of this machine, but at least 2]."
)
@click.option(
    "--measure", is_flag=True, default=None, help="Measure the time of a few timesteps, too."
)
@click.option(
    "--leaks",
    is_flag=True,
    help="Only look for leaks between parts of the data, such as a sequence in two of them.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also list passed checks.")
@backend_option
@json_option
@report_errors
def doctor(
    config: str | None,
    backend: str | None,
    as_json: bool,
    leaks: bool,
    verbose: bool,
    model: str | None,
    **options: Any,
) -> None:
    """Check the machine and the installed packages; with CONFIG, also data and a run.

    CONFIG is the seqdata-run.yaml of a run, its folder, or a store; with --leaks also a YAML file
    with train and val. No plugin is imported but the one that opens the data. Code that a run file
    names is imported only with --leaks, and only to open its data; --model is imported. The exit
    status is 1 if something is bad.
    """
    if model is not None:
        _advise(model, config, backend, as_json=as_json, options=options)
        return
    passed_options = [name for name, value in options.items() if value is not None]
    if passed_options:
        raise ConfigError(
            must_be("doctor: `model`", f"given with `{passed_options[0]}`", "missing")
        )
    findings = list((_collect_leaks if leaks else _collect_findings)(config, backend))
    bad = sum(finding.state == "bad" for finding in findings)
    plain = {"bad": bad, "findings": [finding.to_plain() for finding in findings]}
    print_report(plain, _iter_lines(findings, verbose=verbose), as_json=as_json)
    if bad:
        raise SystemExit(EXIT_DATA)


def _advise(
    model: str, config: str | None, backend: str | None, *, as_json: bool, options: dict[str, Any]
) -> None:
    # torch, and the user's code, are imported only for a model
    from seqdata.cli._doctor.parallel import ParallelQuery, advise_on_model

    chunks, measure = options.pop("chunks"), bool(options.pop("measure"))
    report = advise_on_model(
        ParallelQuery(
            model=model,
            store=config,
            backend=backend,
            chunks=_CHUNKS if chunks is None else chunks,
            measure=measure,
            **options,
        )
    )
    print_report(report.to_json(), report.iter_lines(), as_json=as_json)


def _collect_leaks(config: str | None, backend: str | None) -> Iterator[DoctorFinding]:
    # the code that fits statistics is imported only for leaks
    from seqdata.cli._doctor.leak_sources import read_sources
    from seqdata.cli._doctor.leaks import check_leaks

    if config is None:
        needed = "the seqdata-run.yaml of a run, or a YAML file with `train` and `val`"
        raise ConfigError(must_be("doctor: with --leaks CONFIG", needed, "missing"))
    yield from check_leaks(read_sources(_find_run_file(config) or Path(config), backend))


def _collect_findings(config: str | None, backend: str | None) -> Iterator[DoctorFinding]:
    shards, workers, data_findings = 0, 0, list[DoctorFinding]()
    run = None if config is None else _find_run_file(config)
    if run is not None:
        shards, workers, data_findings = _check_run(run, backend)
    elif config is not None:
        shards, data_findings = _check_data(config, backend)
    yield from check_machine(inspect_machine(), shards=shards, workers=workers)
    yield from check_software()
    yield from check_plugins(default_host().listing())
    yield from data_findings


def _find_run_file(config: str) -> Path | None:
    inside = os.path.join(config, _RUN_FILE)
    if os.path.isfile(inside):
        return Path(inside)
    return Path(config) if config.endswith((".yaml", ".yml")) else None


def _check_data(location: str, backend: str | None) -> tuple[int, list[DoctorFinding]]:
    store, findings = open_checked(location, backend)
    if store is None:
        return 0, findings
    return len(store.shards), [*findings, *check_data(location, store)]


def _check_run(path: Path, backend: str | None) -> tuple[int, int, list[DoctorFinding]]:
    # torch is imported only for a run
    from seqdata.cli._doctor.run_settings import check_settings
    from seqdata.runs.run_file import RunFile

    file = RunFile.read(path)
    findings, shards, train = list[DoctorFinding](), 0, None
    remote = file.read_remote(path)
    for kind in ("train", "val", "test", "predict"):
        for location in dict.fromkeys(file.list_store_paths(kind)):
            if any(finding.subject == location for finding in findings):
                continue
            access = remote if has_url(location) else None
            store, open_findings = open_checked(location, backend, access)
            findings.extend(open_findings)
            if store is not None:
                shards = max(shards, len(store.shards))
                findings.extend(check_data(location, store, access))
                is_whole_store = kind == "train" and file.data["train"] == location
                train = store if is_whole_store else train
    findings.extend(check_settings(file, path, train))
    return shards, int(file.data.get("num_workers") or 0), findings


def _iter_lines(findings: list[DoctorFinding], *, verbose: bool) -> Iterator[str | Text]:
    """Yield the findings, the worst first; without ``verbose`` only those that are not ok."""
    shown = sorted(findings, key=lambda finding: _SEVERITY.index(finding.state))
    for finding in shown if verbose else [one for one in shown if one.state != "ok"]:
        state = (f"{finding.state:<5}", _STYLES[finding.state])
        yield Text.assemble(state, f"{finding.subject}: {finding.name}: {finding.seen}")
        if finding.fix:
            yield f"     do: {finding.fix}"
    counts = Counter[str](finding.state for finding in findings)
    total = ", ".join(f"{counts[state]} {state}" for state in _SEVERITY)
    yield total if verbose or not counts["ok"] else f"{total} (-v lists passed checks)"
