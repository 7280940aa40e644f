"""Every store with every policy in every layout: spans once, the source's content, exact resume.

CI plays a selection in which every two values meet; `make test-nightly` plays the whole table.
"""

from collections import Counter

import pytest
import torch

from seqdata import TBPTT, Loader, World
from seqdata.errors import SeqDataError
from seqdata_testing.lanes import FewLanes
from tests.batch.batches import are_alike
from tests.table.cells import FIELDS, IDLE, POLICIES, ROWS, STORES, all_cells, pairwise, refusal

SELECTED = list(pairwise())
LANES = {name for name, policy in POLICIES.items() if isinstance(policy, (TBPTT, FewLanes))}


def with_workers():
    """Return few cells that hold each policy, and each store and each fields in each layout."""

    def holds(cell):
        return {cell.policy, (cell.store, cell.layout), (cell.fields, cell.layout)}

    cells = [cell for cell in SELECTED if cell.layout != "packed" or cell.policy not in LANES]
    missing, chosen = set().union(*map(holds, cells)), []
    while missing:
        chosen.append(max(cells, key=lambda cell: len(missing & holds(cell))))
        missing -= holds(chosen[-1])
    return chosen


WITH_WORKERS = with_workers()
WITH_ONE_WORKER = {cell for number, cell in enumerate(WITH_WORKERS) if number % 3}  # forks are dear


def mark(cells, chosen):
    """Return parameters; cells that are not chosen are of the night."""
    return [
        pytest.param(cell, id="-".join(cell), marks=[] if cell in chosen else pytest.mark.nightly)
        for cell in cells
    ]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return {name: make(folder / name.replace(" ", "-")) for name, make in STORES.items()}


def loader_of(cell, stores, world=None, **options):
    whole = {"whole": ("text",)} if cell.fields == "two axes" else {}
    return Loader(
        stores[cell.store], POLICIES[cell.policy], collator=cell.layout, seed=2, prefetch=0,
        world=world or World(), **FIELDS[cell.fields], **whole, **options,
    )  # fmt: skip


def spans_of(batch):
    """Return (id, start, stop) of every span that counts, and the row it lies in."""
    if batch.segments is None:
        starts, lengths = batch.start.tolist(), batch.lengths.tolist()
        rows = [
            (row, number, starts[row], starts[row] + lengths[row])
            for row, number in enumerate(batch.ids.tolist())
        ]
    else:
        rows = [tuple(segment) for segment in batch.segments.tolist()]
    return [one for one in rows if batch.weight[one[0]] > 0]


def check_content(batch, shift):
    """Compare every value with the arrays that the stores were made of."""
    batch.validate()
    padded = batch.as_layout("padded")
    place = Counter()
    for row, number, start, stop in spans_of(batch):
        first = place[row]
        place[row] += stop - start
        source = torch.from_numpy(ROWS[number]["x"])
        ahead = batch.horizon
        part = slice(first, first + stop - start + ahead)
        assert torch.equal(padded["x"][row, part], source[start : stop + ahead])
        if shift and stop > start and not batch.carry:
            part = slice(first, first + stop - start)
            assert torch.equal(padded["targets"][row, part], source[start + 1 : stop + 1])
        if first == 0:
            assert int(padded["y"][row]) == ROWS[number]["y"]
            if "id" in padded:
                assert padded["id"][row] == ROWS[number]["id"]
        if "text" in padded and batch.segments is None:
            text = torch.from_numpy(ROWS[number]["text"])
            assert int(batch.lengths_of["text"][row]) == len(text)
            assert torch.equal(padded["text"][row, : len(text)], text)


def check_stream(batches, count):
    """Compare the targets of a stream with what comes one timestep later in it."""
    lanes = [[] for _ in range(count)]
    for batch in batches:
        padded = batch.as_layout("padded")
        score = padded.score
        for row in range(len(batch)):
            lanes[row] += zip(
                padded["x"][row][score[row]].tolist(), padded["targets"][row][score[row]].tolist(),
                strict=True,
            )  # fmt: skip
    stream = [pair for lane in lanes for pair in lane]
    assert [target for _, target in stream[:-1]] == [value for value, _ in stream[1:]]


def planned(store, plan):
    """Return how often the plan holds each span of a base sequence."""
    spans = plan.spans[plan.spans[:, 2] > plan.spans[:, 1]].copy()
    spans[:, 0] = store.base_numbers(spans[:, 0])
    return Counter(map(tuple, spans.tolist()))


@pytest.mark.parametrize("cell", mark(all_cells(), SELECTED))
def test_a_cell_of_the_table(cell, stores):
    words = refusal(cell) or packs_nothing(cell, stores)
    if words is not None:
        with pytest.raises(SeqDataError, match=words):
            list(loader_of(cell, stores))
        return
    loader = loader_of(cell, stores)
    batches = list(loader)
    shift = FIELDS[cell.fields].get("shift", 0)
    spans = Counter()
    for batch in batches:
        check_content(batch, shift)
        spans.update(one[1:] for one in spans_of(batch) if one[3] > one[2])
    plan = loader._engine.plan(0)
    assert spans == planned(loader._engine.store, plan)
    if shift and plan.carry:
        check_stream(batches, plan.lanes)
    check_resume(cell, stores, batches)


def packs_nothing(cell, stores):
    """Return the words by which a row of no timestep is refused, if there is one to be packed."""
    if cell.layout != "packed":
        return None
    plan = loader_of(cell, stores)._engine.plan(0)
    idle = plan.lanes and plan.totals(0, len(plan))[1] < len(plan) * plan.lanes
    return IDLE if idle else None


@pytest.mark.parametrize(
    "cell", mark([cell for cell in all_cells() if refusal(cell) is None], WITH_WORKERS)
)
def test_other_processes_make_the_same_batches(cell, stores):
    """Make the batches of a cell in one or two other processes: bit by bit the same."""
    count = 1 if cell in WITH_ONE_WORKER else 2
    loader = loader_of(cell, stores, num_workers=count, start_method="fork")
    try:
        words = packs_nothing(cell, stores)
        if words is not None:
            with pytest.raises(SeqDataError, match=words):
                list(loader)
            return
        for one, other in zip(loader_of(cell, stores), loader, strict=True):
            assert are_alike(one.__getstate__(), other.__getstate__())
    finally:
        loader.shutdown()


def check_resume(cell, stores, batches):
    """Stop on one rank, go on with two: the same rows are still to come, in the same order."""
    whole = [key for batch in batches for key in keys_of(batch)]
    stopped = loader_of(cell, stores)
    iterator = iter(stopped)
    cut = len(stopped) // 2
    before = [key for _ in range(cut) for key in keys_of(next(iterator))]
    state = stopped.state_dict()
    iterator.close()
    ranks = [loader_of(cell, stores, World(rank, 2)) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(state)
    dealt = [batch for step in zip(*ranks, strict=True) for batch in step]
    for batch in dealt:
        check_content(batch, FIELDS[cell.fields].get("shift", 0))
    assert before + [key for batch in dealt for key in keys_of(batch)] == whole


def keys_of(batch):
    """Name the spans of a batch, in the plan's order."""
    return [
        (batch.number, -1 if batch.lanes is None else int(batch.lanes[row]), *span)
        for row, *span in spans_of(batch)
    ]


def test_the_selection_is_small_and_complete():
    cells = all_cells()
    pairs = {(i, cell[i], j, cell[j]) for cell in cells for i in range(4) for j in range(i + 1, 4)}
    met = {(i, cell[i], j, cell[j]) for cell in SELECTED for i in range(4) for j in range(i + 1, 4)}
    assert met == pairs
    assert len(SELECTED) < len(cells) / 8
