"""Draws the picture of the first page: plans of the example data of the guide on bucketing.

    python docs/about/pictures/padding.py [FOLDER]

It goes into the folder of this file, or into FOLDER.
"""

import sys
from pathlib import Path

from seqdata import Bucketed, Fixed, SequenceIndex, TokenBudget
from seqdata.datasets import make_documents

WIDTH, HEIGHT, GAP = 250, 150, 20  # of a panel, and between panels
REAL, PADDING, TEXT = (
    "#2f7ed8",
    "#c9a0a0",
    "#808890",
)  # readable on white and on black
ROWS = 96  # of each panel: three batches of 32


def find_widest(plan):
    """Return the longest row of the batches that are shown."""
    rows, widest = 0, 0
    for number in range(len(plan)):
        if rows < ROWS:
            spans = plan.batch(number).spans
            widest = max(widest, (spans[:, 2] - spans[:, 1]).max())
            rows += len(spans)
    return widest


def draw_panel(title, plan, left, longest):
    """Return the first rows of a plan as bars: timesteps, then padding."""
    rows, padding, timesteps, bars = 0, 0, 0, []
    for number in range(len(plan)):
        spans = plan.batch(number).spans
        lengths = spans[:, 2] - spans[:, 1]
        padding += len(lengths) * lengths.max() - lengths.sum()
        timesteps += lengths.sum()
        for length in lengths:
            if rows < ROWS:
                top, scale, high = (
                    42 + rows * HEIGHT / ROWS,
                    WIDTH / longest,
                    HEIGHT / ROWS,
                )
                wide, whole = length * scale, lengths.max() * scale
                box = f'y="{top:.1f}" height="{high * 0.8:.1f}"'
                bars.append(
                    f'<rect x="{left}" width="{wide:.1f}" fill="{REAL}" {box}/>'
                )
                bars.append(
                    f'<rect x="{left + wide:.1f}" width="{whole - wide:.1f}" '
                    f'fill="{PADDING}" fill-opacity="0.45" {box}/>'
                )
                rows += 1
    share = f"{padding / (padding + timesteps):.0%} padding"
    return [
        f'<text x="{left}" y="16" font-weight="bold">{title}</text>',
        f'<text x="{left}" y="34">{share}</text>',
        *bars,
    ]


def main():
    """Write ``padding.svg``."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    index = SequenceIndex.from_lengths(make_documents(1_000).lengths)
    policies = {
        "Random batches": Fixed(32),
        "Bucketed(32)": Bucketed(32),
        "TokenBudget(8_192)": TokenBudget(8_192),
    }
    plans = {
        title: policy.plan(index, seed=0, epoch=1)
        for title, policy in policies.items()
    }
    widest, parts = max(map(find_widest, plans.values())), []
    for number, (title, plan) in enumerate(plans.items()):
        parts += draw_panel(title, plan, number * (WIDTH + GAP), widest)
    wide, high = 3 * WIDTH + 2 * GAP, HEIGHT + 48
    style = f'font-family="sans-serif" font-size="13" fill="{TEXT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" {style}>'
    (folder / "padding.svg").write_text(
        "\n".join([head, *parts, "</svg>", ""]), "utf-8"
    )


if __name__ == "__main__":
    main()
