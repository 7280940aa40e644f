"""A batch as figures and as plain tensors: padding is dropped, and all can be loaded again."""

import numpy as np
import pytest
import torch

from seqdata import Bucketed, Fixed, Loader, Mix, Packed, Zip, open_store
from seqdata.cli._report.batch import save_batch, summarize_batch
from seqdata.errors import ConfigError

ROWS = [
    {"id": f"s{number}", "x": np.full(number + 1, number, np.float32), "y": number, "t": "ä" * 60}
    for number in range(4)
]


@pytest.fixture
def store():
    return open_store(ROWS)


def first(store, policy, **options):
    loader = Loader(store, policy, **options)
    return next(iter(loader)), loader.store


def test_figures_are_of_values_without_padding(store):
    batch, _ = first(store, Fixed(4, shuffle=False))
    facts = summarize_batch(batch, store)
    assert (facts["rows"], facts["longest"], facts["timesteps"], facts["padded"]) == (4, 4, 10, 16)
    assert facts["padding"] == 1 - 10 / 16
    x = facts["fields"]["x"]
    assert (x["min"], x["max"], x["shape"], x["nan"]) == (0.0, 3.0, [4, 4], 0)
    assert x["mean"] == pytest.approx((0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / 10)
    assert facts["fields"]["t"] == {"dtype": "str", "shape": [4], "first": "ä" * 40}
    assert [span["key"] for span in facts["sequences"]] == ["s0", "s1", "s2", "s3"]


@pytest.mark.parametrize("layout", ["packed", "jagged", "varlen"])
def test_flat_values_have_no_padding(store, layout):
    batch, _ = first(store, Fixed(4, shuffle=False), collator=layout)
    facts = summarize_batch(batch, store)
    assert (facts["timesteps"], facts["padded"], facts["padding"]) == (10, 10, 0.0)
    assert (facts["fields"]["x"]["min"], facts["fields"]["x"]["max"]) == (0.0, 3.0)


def test_values_that_are_no_numbers_are_counted(store):
    batch, _ = first(store, Fixed(4, shuffle=False), fields=["x"])
    batch.data["x"][3, :2] = torch.tensor([np.nan, np.inf])
    facts = summarize_batch(batch, store)["fields"]["x"]
    assert (facts["nan"], facts["inf"], facts["max"]) == (1, 1, 3.0)
    batch.data["more"] = {"z": torch.zeros(2, dtype=torch.complex64), "n": [torch.ones(1), 7]}
    fields = summarize_batch(batch, store)["fields"]
    assert fields["more.z"] == {"dtype": "complex64", "shape": [2], "nan": 0, "inf": 0}
    assert fields["more.n.0"]["mean"] == 1.0
    assert fields["more.n.1"] == {"dtype": "int", "first": "7"}


@pytest.mark.parametrize("suffix", [".pt", ".npz"])
def test_a_batch_is_saved_as_plain_values(store, suffix, tmp_path):
    batch, _ = first(store, Fixed(2, shuffle=False))
    path = tmp_path / f"batch{suffix}"
    save_batch(batch, store, path)
    if suffix == ".pt":
        plain = torch.load(path, weights_only=True)
        assert plain["data"]["x"].tolist() == batch["x"].tolist()
        assert plain["keys"] == ["s0", "s1"]
        assert plain["data"]["t"] == list(batch["t"])
    else:
        arrays = np.load(path)
        assert arrays["data.x"].tolist() == batch["x"].tolist()
        assert arrays["keys"].tolist() == ["s0", "s1"]
        assert arrays["lengths"].tolist() == [1, 2]


def test_zipped_parts_lie_below_their_names(store, tmp_path):
    batch, both = first(
        {"a": store, "b": store.take([3])}, Zip({"a": Bucketed(2), "b": Bucketed(1)})
    )
    facts = summarize_batch(batch, both)
    assert list(facts["parts"]) == ["a", "b"]
    assert facts["parts"]["b"]["sequences"][0]["key"] == "s3"
    save_batch(batch, both, tmp_path / "zip.npz")
    assert "b.data.x" in np.load(tmp_path / "zip.npz")


def test_ids_of_a_mixture_are_numbers_of_its_part(store):
    other = open_store([{"id": "other", "x": np.zeros(2, np.float32)}])
    store = store.select("id", "x")
    mix = Mix({"a": 1, "b": 1}, Bucketed(1), batches=2, batches_per_update=1)
    loader = Loader({"a": store, "b": other}, mix)
    keys = {batch.part: summarize_batch(batch, loader.store)["sequences"][0]["key"]
            for batch in loader}  # fmt: skip
    assert keys["b"] == "other"
    assert keys["a"].startswith("s")


def test_each_document_of_a_row_is_a_span(store):
    batch, _ = first(store, Packed(1, 6, shuffle=False), fields=["x"])
    spans = summarize_batch(batch, store)["sequences"]
    assert len(spans) > 1
    assert {span["row"] for span in spans} == {0}
    assert sum(span["length"] for span in spans) == 6


def test_what_cannot_be_saved_is_named(store, tmp_path):
    batch, _ = first(store, Fixed(2, shuffle=False))
    with pytest.raises(ConfigError, match=r"`--save` must be a file that ends in .pt \(tensors\)"):
        save_batch(batch, store, tmp_path / "batch.csv")
    batch.data["z"] = {"deep": [object()]}
    with pytest.raises(ConfigError, match=r"replay: z.deep.0 must be tensors, strings or numbers"):
        save_batch(batch, store, tmp_path / "batch.pt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
@pytest.mark.parametrize("layout", ["padded", "packed", "jagged", "varlen"])
def test_unsigned_values_are_summed_up_and_saved(dtype, layout, tmp_path):
    top = np.iinfo(dtype).max
    rows = [{"x": np.array([top, 3], dtype)}, {"x": np.array([2], dtype)}]
    batch, store = first(open_store(rows), Fixed(2, shuffle=False), collator=layout)
    x = summarize_batch(batch, store)["fields"]["x"]
    assert (x["dtype"], x["min"], x["max"]) == (dtype, 2, top)
    assert x["mean"] == pytest.approx((float(top) + 5) / 3)
    for suffix in (".pt", ".npz"):
        save_batch(batch, store, tmp_path / f"batch{suffix}")
    saved = torch.load(tmp_path / "batch.pt", weights_only=True)["data"]["x"]
    values = saved if layout in ("padded", "varlen") else saved.get("data", saved.get("values"))
    assert values.dtype == getattr(torch, dtype)
    assert values.numpy().flat[0] == top
    with np.load(tmp_path / "batch.npz") as arrays:
        assert {array.dtype for name, array in arrays.items() if name.startswith("data.x")} >= {
            np.dtype(dtype)
        }
