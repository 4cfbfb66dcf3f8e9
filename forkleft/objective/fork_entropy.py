"""How uncertain a student is at a fork, in nats: the one bound for the probe, the viewer and its tests.

The probe measures it from the prefix alone; the viewer when the word was written. Without torch, since pages need it.
"""

# The entropy of a choice between two equally likely words, just below so that rounding does not decide.
FORK_ENTROPY = 0.693
