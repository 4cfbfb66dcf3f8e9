"""Routes: how a question is supervised, decided by the verdicts on both models' answers (paper eq. `fork`)."""

from enum import StrEnum


class Route(StrEnum):
    """The four ways to supervise a question."""

    # Both right: cross-entropy on the student's own tokens.
    CE = "CE"
    # The teacher alone is right: forward KL to the teacher on the student's prefixes.
    LEFTOPD = "LEFTOPD"
    # Both wrong: cross-entropy on the reference under its own prefixes; without a reference, ranking only.
    GOLD = "GOLD"
    # The student alone is right: no loss at all, because imitating a wrong teacher would unlearn a right answer.
    EXCLUDE = "EXCLUDE"


# For people: who was right.
ROUTE_WORDS = {
    Route.CE: "both right",
    Route.LEFTOPD: "teacher only",
    Route.GOLD: "neither",
    Route.EXCLUDE: "student only",
}


def route_of(student_right: bool, teacher_right: bool) -> Route:
    """b(q, c) from the verdicts a_s = V_q(c) and a_T = V_q(d) (paper eq. `fork`)."""
    if teacher_right:
        return Route.CE if student_right else Route.LEFTOPD
    return Route.EXCLUDE if student_right else Route.GOLD
