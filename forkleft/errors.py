"""The exception a user's mistake raises, so that the command line can tell it from a defect of ours."""


class ForkLeftError(ValueError):
    """Bad input. The message says what was expected, what was found, and what to do."""


class AutoregressiveError(ForkLeftError):
    """A diffusion model was expected, and an autoregressive one found."""


class DiffusionError(ForkLeftError):
    """An autoregressive model was expected, and a diffusion model found."""
