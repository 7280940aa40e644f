"""Transforms: their declaration, their application to a step, and their random numbers."""
