"""Studies: experiments as data, and what their numbers say. Today: the paper's own."""
