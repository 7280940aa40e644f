"""What several callbacks share: facts of a batch, timers, digests, memory."""
