"""Draws the pictures of "How data is shuffled", from plans as they are made.

    python docs/about/pictures/shuffling.py [FOLDER]

They go into the folder of this file, or into FOLDER. Nothing but lengths is made up.
"""

import io
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.ticker import StrMethodFormatter
from PIL import Image
from seqdata import Bucketed, Mix, SequenceIndex, Weighted

BLUE, ORANGE, GREY = (
    "#0072B2",
    "#E69F00",
    "#777777",
)  # told apart with any colour vision
STYLE = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def main() -> None:
    """Draw all pictures."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    mpl.use("agg")
    with mpl.rc_context(STYLE):
        for draw in (
            draw_blocks,
            draw_steps,
            draw_parts,
            draw_copies,
            draw_places,
        ):
            figure = draw()
            save(figure, folder / f"{draw.__name__.removeprefix('draw_')}.png")


def save(figure, path: Path) -> None:
    """Save a figure with 64 colours: a third of the bytes."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)


def list_numbers(plan) -> np.ndarray:
    """Return the numbers of an epoch's sequences, in order."""
    return np.concatenate([batch.spans[:, 0] for batch in iter_batches(plan)])


def iter_batches(plan):
    return (plan.batch(number) for number in range(len(plan)))


def draw_blocks():
    """A: place in the epoch against number, over all data and in blocks of neighbours."""
    rng = np.random.default_rng(0)
    index = SequenceIndex.from_lengths(rng.integers(20, 200, 1_000_000))
    figure, panels = plt.subplots(
        1, 2, figsize=(7.4, 3), sharey=True, layout="constrained"
    )
    titles = {True: "shuffle=True", "blocks": 'shuffle="blocks"'}
    for axes, (shuffle, title) in zip(panels, titles.items(), strict=True):
        numbers = list_numbers(
            Bucketed(64, shuffle=shuffle).plan(index, seed=1, epoch=0)
        )
        places = np.sort(rng.choice(len(numbers), 3_000, replace=False))
        axes.plot(
            100 * places / len(numbers),
            numbers[places],
            ".",
            color=BLUE,
            ms=1.6,
        )
        axes.set(
            title=title,
            xlabel="place in the epoch, %",
            xlim=(0, 100),
            ylim=(0, 1e6),
        )
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panels[0].set_ylabel("number in the data")
    return figure


def draw_steps():
    """B: mean length of consecutive batches, by the ranks that steps are balanced for."""
    lengths = np.minimum(
        np.random.default_rng(0).lognormal(4, 0.6, 20_000).astype(int) + 1,
        1_000,
    )
    index = SequenceIndex.from_lengths(lengths)
    figure, panels = plt.subplots(
        3,
        1,
        figsize=(7.4, 4.2),
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for axes, ranks in zip(panels, (1, 8, 64), strict=True):
        policy = Bucketed(32, balance_ranks=ranks, worst_first=False)
        sizes = policy.plan(index, seed=0, epoch=0).measures
        means = (sizes.timesteps / sizes.rows)[:256]
        if ranks > 1:
            for first in range(ranks, len(means), 2 * ranks):
                axes.axvspan(
                    first - 0.5, first + ranks - 0.5, color="#EEEEEE", lw=0
                )
        axes.plot(means, ".", color=BLUE, ms=3.5)
        text = "a random order" if ranks == 1 else f"groups of {ranks}"
        axes.set(
            title=f"balance_ranks={ranks}: {text}",
            xlim=(-1, 256),
            ylim=(0, 420),
        )
    panels[1].set_ylabel("mean length of the batch, timesteps")
    panels[2].set_xlabel("batch of the epoch")
    return figure


def draw_parts():
    """C: parts of a mixture, by the ranks of a step."""
    rng = np.random.default_rng(0)
    sizes = {"books": 7_000, "code": 3_000}
    parts = {
        name: SequenceIndex.from_lengths(rng.integers(5, 90, n))
        for name, n in sizes.items()
    }
    index = SequenceIndex.from_parts(parts)
    figure, panels = plt.subplots(
        3, 1, figsize=(7.4, 2.3), sharex=True, layout="constrained"
    )
    for axes, ranks in zip(panels, (1, 4, 8), strict=True):
        mix = Mix(
            {"books": 0.7, "code": 0.3}, Bucketed(32), balance_ranks=ranks
        )
        labels = mix.plan(index, seed=0, epoch=0).label_parts(range(80))
        row = np.array([[label.part == "code" for label in labels]])
        axes.pcolormesh(
            row,
            cmap=ListedColormap([BLUE, ORANGE]),
            edgecolors="white",
            lw=0.6,
        )
        axes.set(
            yticks=[0.5],
            yticklabels=["1 rank" if ranks == 1 else f"{ranks} ranks"],
        )
        axes.tick_params(left=False, bottom=False)
        axes.spines[:].set_visible(False)
    panels[2].set(xlabel="batch of the epoch")
    handles = [mpl.patches.Patch(color=BLUE), mpl.patches.Patch(color=ORANGE)]
    figure.legend(
        handles, ["books, 0.7", "code, 0.3"], loc="outside upper left", ncols=2
    )
    return figure


def draw_copies():
    """D: copies of the same sequences in batches, by length alone and as planned."""
    count, rows, shown = 20_000, 64, slice(150, 210)
    lengths = np.random.default_rng(0).integers(500, 10_000, count)
    is_rare = np.arange(count) % 100 < 3
    weights = np.where(is_rare, 0.5 / is_rare.sum(), 0.5 / (~is_rare).sum())
    policy = Weighted(Bucketed(rows), weights=weights, draws=count)
    plan = policy.plan(SequenceIndex.from_lengths(lengths), seed=0, epoch=0)
    planned = [batch.spans[:, 0] for batch in iter_batches(plan)]
    planned.sort(key=lambda numbers: -np.mean(lengths[numbers]))
    drawn = np.concatenate(planned)
    in_order = drawn[np.lexsort((drawn, -lengths[drawn]))]
    alone = [in_order[first : first + rows] for first in range(0, count, rows)]
    rare = in_order[rows * 185 : rows * 200]
    chosen = np.unique(rare[is_rare[rare]])
    chosen = chosen[np.argsort(-lengths[chosen], kind="stable")]
    chosen = chosen[np.linspace(0, len(chosen) - 1, 12).astype(int)]
    figure, panels = plt.subplots(
        2, 1, figsize=(7.4, 4.2), sharex=True, layout="constrained"
    )
    colours = mpl.colormaps["cividis_r"].copy()
    colours.set_under("white")
    titles = (
        "sorted by length, cut every 64 rows",
        "as planned: Weighted(Bucketed(64), ...)",
    )
    for axes, batches, title in zip(
        panels, (alone, planned), titles, strict=True
    ):
        copies = [
            [np.sum(batch == one) for batch in batches[shown]]
            for one in chosen
        ]
        columns = np.arange(shown.start, shown.stop + 1)
        limits = {"vmin": 1, "vmax": 17}
        mesh = axes.pcolormesh(
            columns,
            np.arange(13),
            copies,
            cmap=colours,
            edgecolors="#DDDDDD",
            lw=0.3,
            **limits,
        )
        axes.set(title=title, yticks=[])
        axes.invert_yaxis()
    figure.supylabel("12 of the rare sequences", fontsize=9)
    panels[1].set_xlabel("batch, from longer rows to shorter ones")
    figure.colorbar(
        mesh, ax=panels, label="copies in the batch", ticks=[1, 5, 9, 13, 17]
    )
    return figure


def draw_places():
    """E: where the last twentieth of an epoch is in the next one."""
    count = 300_000
    index = SequenceIndex.from_lengths(
        np.random.default_rng(0).integers(20, 200, count)
    )
    figure, axes = plt.subplots(figsize=(7.4, 2.4), layout="constrained")
    orders = [
        list_numbers(Bucketed(64).plan(index, seed=0, epoch=epoch))
        for epoch in (0, 1)
    ]
    places = np.empty(count, dtype=np.int64)
    places[orders[1]] = np.arange(count)
    last = places[orders[0][-count // 20 :]]
    shares = 100 * np.bincount(last * 20 // count, minlength=20) / len(last)
    axes.bar(np.arange(20) * 5 + 2.5, shares, width=4.4, color=BLUE)
    axes.axhline(5, color=ORANGE, lw=1.5, ls="--")
    axes.text(100.5, 5, "by chance", color=GREY, va="center")
    axes.set(xlim=(0, 100), ylim=(0, 7), xlabel="place in epoch 1, %")
    axes.set(
        ylabel="share, %", title="The last 5 % of epoch 0, 300,000 sequences"
    )
    return figure


if __name__ == "__main__":
    main()
