"""Files read in place by an index of where each value lies: the engine of most backends."""
