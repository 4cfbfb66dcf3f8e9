"""How a student writes: orders of commitment, the sampler, and what a rollout leaves behind."""

from forkleft.rollout.decoding import decoding_of, write
from forkleft.rollout.sampler import generate
from forkleft.rollout.trajectory import Trajectory

__all__ = ["Trajectory", "decoding_of", "generate", "write"]
