"""Transforms: how they are declared, applied to a step, and given their random numbers."""
