"""Text corpora for seqdata: tokenized once, in parallel, resumably."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqdata.backends import hookimpl
from seqdata_text.text import Text, tokenize
from seqdata_text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["Text", "Tokenizer", "load_tokenizer", "seqdata_register_backends", "tokenize"]


@hookimpl
def seqdata_register_backends() -> Mapping[str, Any]:
    """Register the backend ``text``."""
    return {"text": Text()}
