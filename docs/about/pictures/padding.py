"""Draws the picture of the first page: plans of the example data of the guide on bucketing.

    python docs/about/pictures/padding.py [FOLDER]

It goes into the folder of this file, or into FOLDER. On a phone its words are larger, and a title
has two lines: a browser asks the picture how it is drawn at the width that it has.
"""

import sys
from pathlib import Path

from seqdata import Bucketed, Fixed, SequenceIndex, TokenBudget
from seqdata.datasets import make_documents

WIDTH, HEIGHT, GAP = 250, 150, 20  # of a panel, and between panels
TOP, BOTTOM = 46, 42  # room for titles, and for the legend
REAL, PADDING = "#2f7ed8", "#c9a0a0"  # readable on white and on black
ROWS = 96  # of each panel: three batches of 32
STYLE = """<style>
text { font: 13px sans-serif; fill: #808890; }
.title { font-weight: bold; }
.narrow { display: none; }
@media (max-width: 500px) {
  text { font-size: 27px; }
  .wide { display: none; }
  .narrow { display: inline; }
  .bars { transform: translateY(69px) scaleY(0.65); }
}
</style>"""


def find_widest(plan):
    """Return the longest row of the batches that are shown."""
    rows, widest = 0, 0
    for number in range(len(plan)):
        if rows < ROWS:
            spans = plan.batch(number).spans
            widest = max(widest, (spans[:, 2] - spans[:, 1]).max())
            rows += len(spans)
    return widest


def draw_panel(name, detail, plan, left, longest):
    """Return the first rows of a plan as bars: timesteps, then padding."""
    rows, padding, timesteps, bars = 0, 0, 0, []
    high, scale = HEIGHT / ROWS, WIDTH / longest
    for number in range(len(plan)):
        spans = plan.batch(number).spans
        lengths = spans[:, 2] - spans[:, 1]
        padding += len(lengths) * lengths.max() - lengths.sum()
        timesteps += lengths.sum()
        for length in lengths[: ROWS - rows]:
            wide, whole = length * scale, lengths.max() * scale
            box = f'y="{TOP + rows * high:.1f}" height="{high * 0.8:.1f}"'
            bars += [
                f'<rect x="{left}" width="{wide:.1f}" fill="{REAL}" {box}/>',
                f'<rect x="{left + wide:.1f}" width="{whole - wide:.1f}" '
                f'fill="{PADDING}" fill-opacity="0.45" {box}/>',
            ]
            rows += 1
    share = f"{padding / (padding + timesteps):.0%} padding"
    return [
        *write(left, 16, f"{name}{detail}", "wide title"),
        *write(left, 34, share, "wide"),
        *write(left, 27, name, "narrow title"),
        *write(left, 58, detail.strip(), "narrow title"),
        *write(left, 91, share, "narrow"),
        '<g class="bars">',
        *bars,
        "</g>",
    ]


def write(left, base, words, kind):
    """Return a line of text."""
    return [f'<text class="{kind}" x="{left}" y="{base}">{words}</text>']


def draw_legend(high):
    """Return what the colours and the bars are."""
    one_row = f"{ROWS} rows of an epoch, one bar each"
    lines = []
    for kind, size, step in (("wide", 14, 150), ("narrow", 26, 260)):
        base = high - 10
        words = [(REAL, 1, "real timesteps"), (PADDING, 0.45, "padding")]
        for number, (colour, opacity, word) in enumerate(words):
            left = number * step
            lines.append(
                f'<rect class="{kind}" x="{left}" y="{base - size + 3}" width="{size}" '
                f'height="{size - 2}" fill="{colour}" fill-opacity="{opacity}"/>'
            )
            lines += write(left + size + 6, base, word, kind)
        if kind == "wide":
            lines += write(2 * step, base, one_row, kind)
    return lines


def main():
    """Write ``padding-by-policy.svg``."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    index = SequenceIndex.from_lengths(make_documents(1_000).lengths)
    policies = {
        ("Random", " batches"): Fixed(32),
        ("Bucketed", "(32)"): Bucketed(32),
        ("TokenBudget", "(8_192)"): TokenBudget(8_192),
    }
    plans = {
        title: policy.plan(index, seed=0, epoch=1)
        for title, policy in policies.items()
    }
    widest, parts = max(map(find_widest, plans.values())), []
    for number, (title, plan) in enumerate(plans.items()):
        parts += draw_panel(*title, plan, number * (WIDTH + GAP), widest)
    wide, high = 3 * WIDTH + 2 * GAP, TOP + HEIGHT + BOTTOM
    parts += draw_legend(high)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}">'
    )
    (folder / "padding-by-policy.svg").write_text(
        "\n".join([head, STYLE, *parts, "</svg>", ""]), "utf-8"
    )


if __name__ == "__main__":
    main()
