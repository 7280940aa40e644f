"""Writing a store: shards, their facts, and the commit; resumable, on any executor."""
