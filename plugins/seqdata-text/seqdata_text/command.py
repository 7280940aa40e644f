"""The command ``seqdata tokenize``."""

from __future__ import annotations

import os
import warnings
from typing import Any

import click

from seqdata.errors import ConfigError, SeqDataError, SeqDataWarning
from seqdata_text.text import tokenize
from seqdata_text.tokenizer import load_tokenizer

_EXAMPLES = """\b
Examples:
  seqdata tokenize 'corpus/*.jsonl' tokens/ --tokenizer tok.json --eos
  seqdata tokenize book.txt tokens/ --tokenizer bytes --document line
  seqdata stats tokens/"""


@click.command("tokenize", short_help="Tokenize a corpus, once.", epilog=_EXAMPLES)
@click.argument("source", type=click.Path())
@click.argument("out", type=click.Path(file_okay=False))
@click.option(
    "--tokenizer",
    required=True,
    metavar="FILE",
    help="tokenizer.json, .model of sentencepiece, an encoding of tiktoken, bytes, chars.",
)
@click.option("--text", default="text", show_default=True, help="Column of the text.")
@click.option("--id", "key", metavar="COLUMN", help="Column of ids [default: file and line].")
@click.option("--field", "fields", multiple=True, help="Column to keep. May be repeated.")
@click.option(
    "--document",
    type=click.Choice(["file", "line"]),
    default="file",
    show_default=True,
    help="Unit of a document in plain text.",
)
@click.option("--format", "kind", help="text, jsonl, parquet, arrow [default: by suffixes].")
@click.option("--eos", is_flag=True, help="End documents with the end-of-sequence token.")
@click.option("--eos-token", metavar="TOKEN", help="End documents with this token.")
@click.option("--bos", is_flag=True, help="Begin documents with the beginning-of-sequence token.")
@click.option("--bos-token", metavar="TOKEN", help="Begin documents with this token.")
@click.option(
    "--num-workers",
    type=click.IntRange(min=0),
    help="Number of processes [default: one for each processor].",
)
@click.option(
    "--overwrite", is_flag=True, help="Replace tokens of another corpus, tokenizer or options."
)
def command(  # noqa: PLR0913
    source: str,
    out: str,
    tokenizer: str,
    text: str,
    key: str | None,
    fields: tuple[str, ...],
    document: str,
    kind: str | None,
    eos: bool,
    eos_token: str | None,
    bos: bool,
    bos_token: str | None,
    num_workers: int | None,
    overwrite: bool,
) -> None:
    """Tokenize SOURCE, a file, folder, glob or URL of texts, into the folder OUT.

    After an interruption the same command continues.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", SeqDataWarning)
            warnings.showwarning = _show_warning
            store = tokenize(
                source, out, tokenizer=tokenizer, text=text, id=key, fields=fields,
                document=document, format=kind, eos=eos_token or eos, bos=bos_token or bos,
                num_workers=num_workers, overwrite=overwrite,
            )  # fmt: skip
    except SeqDataError as error:
        if isinstance(error, ConfigError):
            raise click.UsageError(str(error)) from error
        raise click.ClickException(str(error)) from error
    size = load_tokenizer(os.fspath(out)).vocab_size
    count = int(store.lengths.sum(dtype="int64"))
    click.echo(f"{len(store):,} documents, {count:,} tokens of a vocabulary of {size:,}")
    click.echo(f"next: seqdata stats {out}")


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    click.echo(f"note: {message}", err=True)
