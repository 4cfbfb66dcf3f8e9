"""The frozen teacher: its own greedy answers, cached, and its hidden states on the student's prefixes."""

from forkleft.teacher.answers import Answer, AnswerCache, cached_answers
from forkleft.teacher.loading import load_teacher
from forkleft.teacher.local import Teacher
from forkleft.teacher.remote import RemoteTeacher, StateServer
from forkleft.teacher.server import AnswerServer

__all__ = [
    "Answer",
    "AnswerCache",
    "AnswerServer",
    "RemoteTeacher",
    "StateServer",
    "Teacher",
    "cached_answers",
    "load_teacher",
]
