"""ForkLeft: teach a diffusion language model to reason like an autoregressive one.

The package is read left to right, in the order in which data flows through it (`docs/architecture.md`).
Importing it is cheap: PyTorch and Transformers are loaded by the modules that need them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The function takes the name of the package that defines it; imported here so that it stays the function.
from forkleft.verify import verify

if TYPE_CHECKING:
    from forkleft.objective.routes import Route
    from forkleft.rollout import Trajectory, generate
    from forkleft.students import Family, Student, convert, load_student, save_student
    from forkleft.teacher import Teacher, load_teacher
    from forkleft.train.adapt import AdaptTrainer
    from forkleft.train.adapt_config import AdaptConfig
    from forkleft.train.config import ForkLeftConfig
    from forkleft.train.trainer import ForkLeftTrainer
    from forkleft.verify import Verifier

__version__ = "0.2.0.dev0"
__all__ = [
    "AdaptConfig",
    "AdaptTrainer",
    "Family",
    "ForkLeftConfig",
    "ForkLeftTrainer",
    "Route",
    "Student",
    "Teacher",
    "Trajectory",
    "Verifier",
    "convert",
    "generate",
    "load_student",
    "load_teacher",
    "save_student",
    "verify",
]

_HOME = {
    "AdaptConfig": "forkleft.train.adapt_config",
    "AdaptTrainer": "forkleft.train.adapt",
    "Family": "forkleft.students",
    "ForkLeftConfig": "forkleft.train.config",
    "ForkLeftTrainer": "forkleft.train.trainer",
    "Route": "forkleft.objective.routes",
    "Student": "forkleft.students",
    "Teacher": "forkleft.teacher",
    "Trajectory": "forkleft.rollout",
    "Verifier": "forkleft.verify",
    "convert": "forkleft.students",
    "generate": "forkleft.rollout",
    "load_student": "forkleft.students",
    "load_teacher": "forkleft.teacher",
    "save_student": "forkleft.students",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'forkleft' has no attribute {name!r}")
