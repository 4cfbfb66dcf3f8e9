from pathlib import Path

import pytest

from forkleft import load_student, load_teacher
from forkleft.digests import fingerprint
from forkleft.errors import ForkLeftError
from forkleft.lab.models import MODELS
from forkleft.students.bundled import bundled_name, local_path, model_path


def test_what_ships_is_found_by_name():
    for name in MODELS:
        assert local_path(f"lab:{name}") == model_path(name)
        assert (model_path(name) / "config.json").is_file()
        assert bundled_name(local_path(f"lab:{name}")) == bundled_name(str(model_path(name))) == f"lab:{name}"
    with pytest.raises(ForkLeftError, match="no lab model 'teacher'; there are student-block, student-"):
        local_path("lab:teacher")
    with pytest.raises(ForkLeftError, match="; did you mean student-block"):
        local_path("lab:student-blok")
    assert local_path("~/lab") == Path.home() / "lab"
    assert bundled_name("runs/teacher-strong") is bundled_name("owner/teacher-strong") is bundled_name("") is None


def test_students_and_teachers_load_by_that_name():
    student, teacher = load_student("lab:student-block"), load_teacher("lab:teacher-weak")
    assert fingerprint(student.model) == fingerprint(load_student(model_path("student-block")).model)
    assert fingerprint(teacher.model) == fingerprint(load_teacher(model_path("teacher-weak")).model)
    assert student.origin.source == "lab:student-block"
