"""Helpers of callbacks: information about a batch, and statistics of steps."""
