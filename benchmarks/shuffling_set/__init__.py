"""Parts of shuffling.py: data, policies, orders of sequences, small models, tables."""
