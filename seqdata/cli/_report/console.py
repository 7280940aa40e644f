"""Helpers of all commands: options, reports, errors, formatting."""

from __future__ import annotations

import functools
import json
import math
import re
import select
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TextIO

import click
from rich.console import Console, RenderableType

from seqdata.errors import ConfigError, SeqDataError, SeqDataWarning
from seqdata.storage.remote.urls import redact_secrets

Parameters = ParamSpec("Parameters")
EXIT_USAGE, EXIT_DATA = 2, 1  # exit codes


backend_option = click.option(
    "--backend", metavar="NAME", help="Backend that opens it [default: found from the location]."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints strings without interpreting markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_report(plain: Any, lines: Iterable[RenderableType], *, as_json: bool) -> None:
    """Print a report as one JSON object, or as lines and tables.

    Args:
        plain: The report as plain data.
        lines: Lines and tables; not iterated over if JSON is printed.
        as_json: Whether JSON is printed.
    """
    if as_json:
        click.echo(json.dumps(_to_strict_json(plain), indent=2))
    else:
        print_lines(lines)


def print_lines(lines: Iterable[RenderableType], *, stderr: bool = False) -> None:
    """Print lines and tables."""
    console = make_console(stderr=stderr)
    for line in lines:
        console.print(line)


def _to_strict_json(value: Any) -> Any:
    """Return a value with NaN and infinities, which strict JSON does not have, as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _to_strict_json(item) for key, item in value.items()}
    return [_to_strict_json(item) for item in value] if isinstance(value, list | tuple) else value


def report_errors(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Wrap a command: print errors as one line with an exit code, and warnings as notes."""

    @functools.wraps(command)
    def wrapper(*args: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", SeqDataWarning)
                warnings.showwarning = _show_warning
                command(*args, **options)
        except (SeqDataError, OSError) as error:
            if isinstance(error, BrokenPipeError) and _is_stdout_closed():
                raise  # click ends quietly; a reader such as `head` has read enough
            text = redact_secrets(f"error: {_rewrite_arguments(str(error))}")
            make_console(stderr=True).print(text, style="red")
            raise SystemExit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_DATA) from error

    return wrapper


def _is_stdout_closed() -> bool:
    """Return whether the reader of standard output has closed it."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError):  # no such call on this system, or not a file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _rewrite_arguments(text: str) -> str:
    """Return a message in which Python arguments are replaced by options of the command."""
    context = click.get_current_context(silent=True)
    parameters = context.command.params if context else []
    shown = [
        parameter
        for parameter in parameters
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    options = {option.opts[0].removeprefix("--").replace("-", "_"): option for option in shown}
    options |= {str(option.name): option for option in shown}  # by the names of arguments

    def replace(found: re.Match[str]) -> str:
        option = options.get(found["name"])
        if option is None:
            return found[0]
        if option.is_flag:
            is_off = found["value"] == "False" and option.secondary_opts
            return option.secondary_opts[0] if is_off else option.opts[0]
        return f"{option.opts[0]} {found['value']}" if found["value"] else option.opts[0]

    return re.sub(r"`(?P<name>\w+)`(?:='?(?P<value>[\w.-]+)'?)?", replace, text)


def join_locations(locations: Sequence[str]) -> str | list[str]:
    """Return the argument of ``open_store`` for locations; several are one store."""
    return locations[0] if len(locations) == 1 else list(locations)


def format_bytes(count: float) -> str:
    """Return a number of bytes in readable form: ``28.6 MiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_examples(*lines: str) -> str:
    """Return an epilog that click does not wrap."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    del category, filename, lineno, file, line  # the line of seqdata's code is not shown
    click.echo(redact_secrets(f"note: {message}"), err=True)
