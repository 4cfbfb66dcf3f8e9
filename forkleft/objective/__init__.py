"""The objective: what is read from both models, and the losses on it."""
