from dataclasses import replace

import pytest
import torch
from tiny import FAMILIES, family_name, tiny_student

from forkleft.errors import ForkLeftError
from forkleft.rollout import decode, decoding_of, generate
from forkleft.students import KNOWN_FAMILIES, Family
from forkleft.students.families import Decoding

PROMPTS = [[5, 9, 2], [7, 1, 3, 3, 8]]
BUDGET = 12
# What the authors of each family show, in the words of `generate` (docs/models.md gives the places).
SHOWN = {
    "efficient-dlm": {"order": "confidence", "threshold": 0.9},
    "sdar": {"order": "confidence", "threshold": 0.85},
    "bd3lm": {"order": "confidence"},
    "mdlm": {"order": "confidence", "window": BUDGET},
    "fast-dllm-v2": {"order": "confidence", "threshold": 0.9},
    "dream": {"order": "low_entropy", "window": BUDGET},
    "llada": {"order": "confidence"},
}


def tokens(trajectories):
    return [(trajectory.tokens, trajectory.commit_pass) for trajectory in trajectories]


def sure(family):
    """A student that is often above a threshold."""
    student = tiny_student(family, dtype=torch.float64)
    with torch.no_grad():
        student.model.lm_head.weight *= 10
    return student


@pytest.mark.parametrize("name", KNOWN_FAMILIES)
def test_native_is_what_the_familys_authors_show(name):
    student, shown = sure(KNOWN_FAMILIES[name].family), dict(SHOWN[name])
    native = decode(student, PROMPTS, decoding_of(student.family, "native"), max_new_tokens=BUDGET)
    window = shown.pop("window", None)
    by_hand = student if window is None else sure(replace(student.family, block_size=window))
    assert tokens(native) == tokens(generate(by_hand, PROMPTS, max_new_tokens=BUDGET, **shown))
    # The student itself stays as it is.
    assert student.family == KNOWN_FAMILIES[name].family


@pytest.mark.parametrize("name", ["efficient-dlm", "sdar", "fast-dllm-v2"])
def test_a_threshold_takes_fewer_passes(name):
    """Or the test above could not fail."""
    student = sure(KNOWN_FAMILIES[name].family)
    passes = [
        sum(
            trajectory.forwards
            for trajectory in decode(student, PROMPTS, decoding_of(student.family, kind), max_new_tokens=BUDGET)
        )
        for kind in ("static", "native")
    ]
    assert passes[1] < passes[0]


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_static_is_one_token_a_pass(family):
    student = tiny_student(family, dtype=torch.float64)
    written = decode(student, PROMPTS, decoding_of(family, "static"), max_new_tokens=BUDGET)
    assert tokens(written) == tokens(generate(student, PROMPTS, max_new_tokens=BUDGET))


def test_what_the_user_says_wins():
    dream, sdar = KNOWN_FAMILIES["dream"].family, KNOWN_FAMILIES["sdar"].family
    assert decoding_of(sdar, "native") == Decoding(threshold=0.85)
    assert decoding_of(sdar, "native", threshold=0.9, passes=2) == Decoding(passes=2, threshold=0.9)
    assert decoding_of(sdar, "static", threshold=0.9) == Decoding(threshold=0.9)
    assert decoding_of(dream, "native", order="confidence") == Decoding(whole_budget=True)
    # Windows of a size of one's own are not filled as one; blocks of another size change nothing else.
    assert decoding_of(replace(dream, block_size=64), "native") == Decoding("low_entropy")
    assert decoding_of(replace(sdar, block_size=32), "native") == Decoding(threshold=0.85)


def test_decodings_that_are_not_known():
    with pytest.raises(ForkLeftError, match="decoding must be one of static, native, found 'fast'"):
        decoding_of(KNOWN_FAMILIES["sdar"].family, "fast")
    with pytest.raises(ForkLeftError, match=r"known of the families efficient-dlm, sdar, .* decode it as static"):
        decoding_of(Family("block", 4), "native")


def test_a_decoding_in_words():
    assert str(Decoding()) == "one token a pass"
    assert str(Decoding(passes=8)) == "8 passes a block"
    assert str(Decoding(threshold=0.9)) == "threshold 0.9"
    assert str(Decoding("low_entropy", 4, 0.85, True)) == "low_entropy, 4 passes a block, threshold 0.85, one window"
