from pathlib import Path

import pytest

from forkleft import load_student, load_teacher
from forkleft.bundled import local_path, model_path
from forkleft.errors import ForkLeftError
from forkleft.identity import fingerprint
from forkleft.lab.models import MODELS


def test_what_ships_is_found_by_name():
    for name in MODELS:
        assert local_path(f"lab:{name}") == model_path(name)
        assert (model_path(name) / "config.json").is_file()
    with pytest.raises(ForkLeftError, match="no lab model 'teacher'; there are student-block, student-"):
        local_path("lab:teacher")
    assert local_path("~/lab") == Path.home() / "lab"


def test_students_and_teachers_load_by_that_name():
    student, teacher = load_student("lab:student-block"), load_teacher("lab:teacher-weak")
    assert fingerprint(student.model) == fingerprint(load_student(model_path("student-block")).model)
    assert fingerprint(teacher.model) == fingerprint(load_teacher(model_path("teacher-weak")).model)
    assert student.origin.source == "lab:student-block"
