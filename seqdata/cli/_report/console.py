"""Helpers of all commands: options, reports, tables, errors, formatting."""

from __future__ import annotations

import codecs
import functools
import json
import math
import re
import select
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TextIO

import click
from click.shell_completion import CompletionItem
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from seqdata.errors import ConfigError, SeqDataError, SeqDataWarning
from seqdata.host import default_host
from seqdata.storage.remote.urls import redact_secrets

Parameters = ParamSpec("Parameters")
EXIT_USAGE, EXIT_DATA = 2, 1  # exit statuses, as docs/api/command.md lists them

_ASCII = {"·": "-", "█": "#", "…": "..."}
_GAP = "   "  # between the columns of a table
_REMARK = "    "  # before a remark, where a line is wrapped first


def complete_location(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the completions of a location in a shell: names of files and folders."""
    return [CompletionItem(incomplete, type="file")]


def complete_name(
    kind: str,
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return the function that completes names of one kind, such as ``policy``."""

    def complete(
        _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        host = default_host()
        offered = {name for plugin in host.listing() for name in plugin.offers.get(kind, ())}
        names = sorted({*host.names(kind), *offered})
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


backend_option = click.option(
    "--backend",
    metavar="NAME",
    shell_complete=complete_name("backend"),
    help="Backend that opens the data, also with options: NAME:option=value,... "
    "[default: found from the location].",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
stores_argument = click.argument(
    "stores", nargs=-1, required=True, metavar="STORE...", shell_complete=complete_location
)


def write_any_encoding() -> None:
    """Make the streams of the process print every string, whatever their encoding.

    Characters that an encoding lacks become ASCII: ``-`` for a dot between figures, ``#`` for a
    bar, ``...`` for an ellipsis, and Python's escape for any other.
    """
    codecs.register_error("seqdata-ascii", _encode_as_ascii)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="seqdata-ascii")


def _encode_as_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    escaped = (
        _ASCII.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs
    )
    return "".join(escaped), error.end


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints strings without interpreting markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_report(plain: Any, lines: Iterable[str | Text], *, as_json: bool) -> None:
    """Print a report as one JSON object, or as lines.

    Args:
        plain: The report as plain data.
        lines: The lines; not iterated over if JSON is printed.
        as_json: Whether JSON is printed.
    """
    if as_json:
        click.echo(json.dumps(_to_strict_json(plain), indent=2))
    else:
        print_lines(lines)


def print_lines(lines: Iterable[str | Text], *, stderr: bool = False) -> None:
    """Print lines: on a terminal wrapped between words, else one each.

    A word that is longer than the terminal is wide, such as an id or a path, is never broken by a
    new line, and neither is a ``Text`` with ``no_wrap``: a row of a table, or a command to copy.
    """
    console = make_console(stderr=stderr)
    for line in lines:
        console.print(_wrap(line, console.width) if console.is_terminal else line)


def _wrap(line: str | Text, width: int) -> str | Text:
    """Return a line in rows of a width, broken between words; rows after the first are indented."""
    text = Text(line) if isinstance(line, str) else line
    plain = text.plain
    if text.no_wrap or cell_len(plain) <= width:
        return line
    lead = len(plain) - len(plain.lstrip())
    remark = plain.rfind(_REMARK, lead)
    breaks, used = list[int](), 0
    for word in re.finditer(r"\s*\S+", plain):
        used += cell_len(word[0])
        is_remark = word.start() == remark
        if is_remark or (used > width and word.start()):
            breaks.append(word.end() - len(word[0].lstrip()))
            used = lead + 2 + cell_len(word[0].lstrip())
    rows = text.divide(breaks)
    for number, row in enumerate(rows):
        row.rstrip()
        row.pad_left(lead + 2 if number else 0)
    return Text("\n").join(rows)


def keep_whole(line: str) -> Text:
    """Return a line that is printed as it is: a command to copy, or a row of a table."""
    return Text(line, no_wrap=True)


def iter_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[str] = ()
) -> Iterator[Text]:
    """Yield a table as lines: numbers to the right, other columns to the left; nothing is cut.

    An empty cell is shown as ``-``.

    Args:
        titles: Titles of the columns.
        rows: Cells of each row.
        left: Titles of the columns that are not numbers.
    """
    cells = [list(titles), *([cell or "-" for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [
            cell + " " * (width - cell_len(cell))
            if title in left
            else " " * (width - cell_len(cell)) + cell
            for title, cell, width in zip(titles, row, widths, strict=True)
        ]
        yield keep_whole(_GAP.join(padded).rstrip())


def _to_strict_json(value: Any) -> Any:
    """Return a value with NaN and infinities, which strict JSON does not have, as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _to_strict_json(item) for key, item in value.items()}
    return [_to_strict_json(item) for item in value] if isinstance(value, list | tuple) else value


def report_errors(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Wrap a command: print errors without a traceback, end with their exit status, note warnings.

    Errors of seqdata and of the system are printed; the status is 2 for a ``ConfigError``, else 1.
    Other exceptions pass.
    """

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
            print_lines([Text(line, style="red") for line in text.split("\n")], stderr=True)
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
        if not found["value"]:
            return option.opts[0]
        value = found["value"].strip("'")
        is_plain = re.fullmatch(r"[\w.-]+", value)  # else quoted, as in Python
        return f"{option.opts[0]} {value}" if is_plain else f"{option.opts[0]}={found['value']}"

    return re.sub(r"`(?P<name>\w+)(?:=(?P<value>[^`]+))?`", replace, text)


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
    print_lines([redact_secrets(f"note: {message}")], stderr=True)
