"""ForkLeft: teach a diffusion language model to reason like an autoregressive one.

The package is read left to right, in the order in which data flows through it (`docs/architecture.md`).
Importing it costs nothing: PyTorch and Transformers are loaded by the modules that need them.
"""

__version__ = "0.1.0.dev0"
