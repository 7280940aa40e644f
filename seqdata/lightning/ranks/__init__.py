"""The ranks of a fit: synchronized iteration, detection of dead and stalled ranks, collectives."""
