"""Diffusion students: what family a model is of, and how it attends."""

from forkleft.students.family import Family
from forkleft.students.student import Student

__all__ = ["Family", "Student"]
