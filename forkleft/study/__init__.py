"""Studies: experiments as data, what they show and how sure that is; and the paper's own numbers."""
