import math
from dataclasses import replace

import pytest
from tiny import STOP

from forkleft.errors import ForkLeftError
from forkleft.objective.routes import Route
from forkleft.objective.supervision import ObjectiveSettings
from forkleft.objective.supervision import plan as supervision_plan
from forkleft.prompts import Reading


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rho": 1.5}, "rho .* expected 0 to 1, found 1.5"),
        ({"rho": math.nan}, "rho"),
        ({"mu": -1.0}, "mu must not be negative"),
        ({"alpha": 2.0}, "alpha .* expected 0 to 1"),
        ({"geometry": "flat"}, "geometry must be one of truncated, canvas"),
        ({"attention": "causal"}, "attention must be one of native, full"),
        ({"budget": 0}, "budget must be at least 1 token, found 0"),
        ({"view": "left"}, "view must be one of prefix, target_masked, found 'left'"),
        ({"supervision": "kd"}, "supervision must be one of routed, opd, sft"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ForkLeftError, match=message):
        replace(ObjectiveSettings(budget=12), **changes)


def lesson(response, *, student_right=False, teacher_right=True, supervision="routed", **changes):
    settings = ObjectiveSettings(budget=12, rho=0.5, supervision=supervision)
    right = {"student_right": student_right, "teacher_right": teacher_right}
    return supervision_plan("q", [5, 9], response, settings, (STOP,), **right, seed=1, update=2, **changes)


def test_a_lesson_is_read_where_its_route_needs_it():
    response, reference = [7, 3, 1, STOP], [4, 4, 4, 4, STOP]
    taught = lesson(response, reference=reference)
    assert (taught.route, taught.terms) == (Route.LEFTOPD, ("teacher",))
    assert taught.taught == (response, taught.selected)
    assert taught.reading == Reading("q (LEFTOPD)", [5, 9], response, taught.selected)
    assert taught.reference_reading is None and taught.reference_selected == []
    gold = lesson(response, teacher_right=False, reference=reference)
    assert gold.taught is None
    assert gold.reference_reading == Reading("q (GOLD), reference", [5, 9], reference, gold.reference_selected)
    # Response and reference end with a real EOS, which is always selected.
    assert gold.selected[-1] == 3 and gold.reference_selected[-1] == 4
    excluded = lesson(response, student_right=True, teacher_right=False, reference=reference)
    assert (excluded.retained, excluded.terms, excluded.selected) == (False, (), [])


def test_a_lesson_without_a_reference_is_ranked_only():
    gold = lesson([7, 3, 1], teacher_right=False)
    assert gold.retained and gold.terms == () and gold.reference_reading is None


def test_the_mixture_asks_the_teacher_on_the_reference():
    mixed = lesson([7, 3, 1], supervision="mix", reference=[4, 4, STOP])
    assert mixed.taught == ([4, 4, STOP], mixed.reference_selected)


def test_a_stop_id_before_the_end_is_refused():
    with pytest.raises(ForkLeftError, match=r"question q \(LEFTOPD\): the response has 3 tokens, but a stop id"):
        lesson([7, STOP, 1])
