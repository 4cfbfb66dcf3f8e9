"""How a student writes: the order of commits, the sampler, and the result of a rollout."""

from forkleft.rollout.decoding import decoding_of, write
from forkleft.rollout.sampler import generate
from forkleft.rollout.trajectory import Trajectory
from forkleft.rollout.writer import Writer

__all__ = ["Trajectory", "Writer", "decoding_of", "generate", "write"]
