"""Writing a store: shards, their records, and the commit; resumable, on any executor."""
