"""Helpers of callbacks: facts about a batch, timers, digests, memory."""
