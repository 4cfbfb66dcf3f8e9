"""How a student writes: orders of commitment, the sampler, and what a rollout leaves behind."""

from forkleft.rollout.decoding import decoding_of, write
from forkleft.rollout.sampler import generate
from forkleft.rollout.trajectory import Trajectory
from forkleft.rollout.writer import Writer

__all__ = ["Trajectory", "Writer", "decoding_of", "generate", "write"]
