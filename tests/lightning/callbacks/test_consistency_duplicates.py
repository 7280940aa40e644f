"""The same batch on several replicas is noticed, on one it is right."""

import torch

from seqdata import Fixed, Loader
from seqdata.lightning.callbacks.consistency import (
    SeenBatch,
    describe_duplicates,
    digest_batch,
)
from tests.lightning.harness import sequences


def test_the_same_batch_of_several_replicas_is_named_and_of_one_replica_is_not():
    one, two = digest_batch(torch.ones(3)), digest_batch({"x": [torch.ones(4)]})
    told = describe_duplicates(
        [
            SeenBatch(0, one),
            SeenBatch(1, two),
            SeenBatch(2, one),
            SeenBatch(3, two),
            SeenBatch(4, (7,)),
        ]
    )
    assert told.startswith("in the first step ranks 0, 2; 1, 3 have the same batch, so they")
    assert (
        describe_duplicates(
            [SeenBatch(0, one), SeenBatch(0, one), SeenBatch(1, two), SeenBatch(1, two)]
        )
        == ""
    )
    assert describe_duplicates([SeenBatch(0, ()), SeenBatch(1, ())]) == ""


def test_a_batch_of_dummy_rows_has_no_digest():
    (batch,) = Loader(sequences(4), Fixed(4))
    assert digest_batch(batch)
    batch.weight = torch.zeros(4)
    assert digest_batch(batch) == ()
