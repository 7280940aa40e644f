"""The ranks of a fit: lockstep, detection of dead and stalled ranks, collectives."""
