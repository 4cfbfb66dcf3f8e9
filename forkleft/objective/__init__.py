"""The objective: what is read of both models, and the losses on it."""
