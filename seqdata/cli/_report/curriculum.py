"""A limit of length that is raised over the run, for ``seqdata plan --curriculum``."""

from __future__ import annotations

from typing import Any

import click

from seqdata.errors import ConfigError
from seqdata.policies.curriculum import Curriculum
from seqdata.protocols import Policy

CURRICULUM_OPTIONS = ("curriculum", "segment")
"""Options of the command that go to the curriculum; ``batches`` too, without a mixture."""

_EXAMPLE = "0:256,2:1024,5:none"


def parse_rules(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[tuple[int, int | None], ...] | None:
    """Return the pairs of ``0:256,2:1024,5:none``; none: no limit."""
    if text is None:
        return None
    pairs = [pair.partition(":") for pair in text.split(",")]
    try:
        rules = tuple(
            (int(number), None if limit.strip().lower() == "none" else int(limit))
            for number, _, limit in pairs
        )
    except ValueError:
        raise click.BadParameter(f"must be pairs like {_EXAMPLE}, but is {text!r}") from None
    numbers = [number for number, _ in rules]
    is_rising = numbers[0] == 0 and numbers == sorted(set(numbers))
    if not is_rising or any(limit is not None and limit < 1 for _, limit in rules):
        raise click.BadParameter(
            f"must rise from 0, with lengths of at least 1, like {_EXAMPLE}, but is {text!r}"
        )
    return rules


def take_curriculum_options(options: dict[str, Any], *, has_mix: bool) -> dict[str, Any]:
    """Remove the options of a curriculum from all options, and return them by their own names.

    Raises:
        ConfigError: If there are some without ``--curriculum``.
    """
    of_epoch = ("batches",) if "curriculum" in options and not has_mix else ()
    names = (*CURRICULUM_OPTIONS, *of_epoch)
    curriculum_options = {name: options.pop(name) for name in names if name in options}
    if curriculum_options and "curriculum" not in curriculum_options:
        raise ConfigError(
            "plan: `--segment` must come with `--curriculum`, but there is none. Pass e.g. "
            f"--curriculum {_EXAMPLE}."
        )
    if curriculum_options:
        curriculum_options["max_length"] = curriculum_options.pop("curriculum")
    return curriculum_options


def limit_lengths(policy: Policy, options: dict[str, Any]) -> Policy:
    """Return a policy with a limit that is raised over the run; without options as it is.

    Raises:
        ConfigError: If an option is invalid, or the policy has no limit of length.
    """
    return Curriculum(policy, **options) if options else policy
