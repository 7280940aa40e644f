"""Lanes of truncated backpropagation: which lane reads which span at which step."""
