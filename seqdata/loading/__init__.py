"""Makes the batches of a rank's share: reading, transforms, collating, prefetching."""
