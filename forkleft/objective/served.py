"""Does a server give the teacher that is in memory? `forkleft doctor --teacher-url` runs this, where both fit.

Shapes: S positions that are read, E the teacher's width, V the rows of its head.
"""

from collections.abc import Sequence

import torch

from forkleft.objective.checks import MULTIPLE, Finding, rounding
from forkleft.prompts import Reading, prompt_ids
from forkleft.teacher import RemoteTeacher, Teacher

_QUESTIONS = (
    "a=7;b=a+5;b?",
    "What is the sum of the first ten even numbers? Think step by step.",
    "Why is the sky blue?",
)
_ANSWER_TOKENS = 32


@torch.no_grad()
def compare_served(local: Teacher, remote: RemoteTeacher) -> list[Finding]:
    """Compare the distributions of a teacher on a server with those of the same teacher in memory.

    They are read on its own answers to a few questions. What rounding explains is measured on the model in memory, as
    the other checks do. Raises ForkLeftError if the server does not serve the teacher at all.
    """
    readings = list(_readings(local))
    remote.check(readings)
    ours_SV, theirs_SV = _log_probs(local, readings), _log_probs(remote, readings)
    with rounding(local.model):
        rounded_SV = _log_probs(local, readings)
    return [
        Finding(
            "log-probabilities are the same",
            (theirs_SV - ours_SV).abs().max().item(),
            MULTIPLE * (rounded_SV - ours_SV).abs().max().item(),
            f"of all {ours_SV.shape[1]} words at {len(ours_SV)} positions",
        ),
        Finding(
            "KL(in memory ‖ on the server)",
            _kl(ours_SV, theirs_SV),
            # It grows with the square of the differences.
            MULTIPLE**2 * _kl(ours_SV, rounded_SV),
            "what the student learns from either is the same",
        ),
    ]


def _readings(teacher: Teacher) -> list[Reading]:
    conversations = [[{"role": "user", "content": question}] for question in _QUESTIONS]
    answers = teacher.answers(conversations, max_new_tokens=_ANSWER_TOKENS)
    readings = []
    for question, messages, answer in zip(_QUESTIONS, conversations, answers, strict=True):
        # A teacher that answers nothing is still read once, where it stops.
        response = [*teacher.tokenizer.encode(answer.text, add_special_tokens=False), teacher.stop_ids[0]]
        readings.append(Reading(question, prompt_ids(teacher.tokenizer, messages), response, range(len(response))))
    return readings


def _log_probs(teacher: Teacher, readings: Sequence[Reading]) -> torch.Tensor:
    """`logp_SV`, on the CPU: some devices have no float64, and in float32 a small KL would be rounding alone."""
    return teacher.head_logits(torch.cat(teacher.hidden(readings))).cpu().double().log_softmax(-1)


def _kl(left_SV: torch.Tensor, right_SV: torch.Tensor) -> float:
    """The largest KL(left ‖ right) of a row; a sum of rounded terms can fall below 0, the divergence cannot."""
    return (left_SV.exp() * (left_SV - right_SV)).sum(-1).clamp(min=0).max().item()
