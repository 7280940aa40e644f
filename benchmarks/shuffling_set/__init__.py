"""What shuffling.py is made of: data, policies, orders of sequences, small models, tables."""
