"""A store as text and HTML."""

from seqdata.storage import store_repr
from seqdata.storage.memory import MemoryStore
from tests.storage.rows import AXES, ROWS


def test_a_store_is_text_with_fields_and_lengths(monkeypatch):
    store = MemoryStore.from_sequences(ROWS, axes=AXES)
    assert repr(store).splitlines() == [
        "MemoryStore(7 sequences)",
        "  id    str      per sequence",
        "  x     float32  (time, 2)",
        "  text  uint8    (text,)",
        "  y     int32    per sequence",
        "  note  str      per sequence",
        "  lengths along 'time': 0 ███████ 6, median 3",
        "  lengths along 'text': 1 ███████ 7, median 4",
    ]
    assert "there are no sequences" in repr(store.take([]))
    monkeypatch.setattr(store_repr, "MAX_SAMPLED_LENGTHS", 3)
    assert repr(store.select("x")).endswith("0 █  █  █ 6, median 3 (of 3 of them)")
