"""Diffusion students: what family a model is of, how it attends, and its way from and to a checkpoint."""

from forkleft.students.conversion import convert
from forkleft.students.families import KNOWN_FAMILIES
from forkleft.students.family import Family
from forkleft.students.loading import load_student
from forkleft.students.saving import merge, save_student
from forkleft.students.student import Student

__all__ = ["KNOWN_FAMILIES", "Family", "Student", "convert", "load_student", "merge", "save_student"]
