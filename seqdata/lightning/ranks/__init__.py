"""All ranks of a fit: lockstep, dead and stalled ranks, collectives."""
