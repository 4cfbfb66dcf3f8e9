"""How a student writes: the order of commits, the sampler, and the result of a rollout."""

from forkleft.rollout.decoding import decode, decoding_of
from forkleft.rollout.sampler import generate
from forkleft.rollout.trajectory import Trajectory
from forkleft.rollout.writer import Writer

__all__ = ["Trajectory", "Writer", "decode", "decoding_of", "generate"]
