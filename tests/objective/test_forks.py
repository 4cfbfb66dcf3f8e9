import pytest
import torch
from tiny import FAMILIES, MASK, PAD, tiny_student

from forkleft.objective.forks import Fork, fork_of
from forkleft.prompts import Reading

WIDTH, TEACHER_WIDTH = 32, 6


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_row_of_the_largest_entropy_among_those_with_a_teacher():
    student = tiny_student(FAMILIES[0])
    readings = [Reading("a (LEFTOPD)", [1], [5, 6, 7], [0, 2]), Reading("b (LEFTOPD)", [1], list(range(12)), [3, 10])]
    hidden, teacher_hidden = random(6, WIDTH, seed=0), random(4, TEACHER_WIDTH, seed=1)
    # The teacher's head has rows of its own, behind those that both models know.
    weight = random(45, TEACHER_WIDTH, seed=2)
    # The last two rows have no teacher.
    entropy = torch.tensor([0.1, 0.2, 0.1, 0.9, 2.0, 3.0])
    fork = fork_of(student, readings, entropy, hidden, teacher_hidden, weight)
    with torch.no_grad():
        p = student.logits(hidden[3:4])[0].softmax(-1)
    best = p.argsort(descending=True)[:2].tolist()
    assert fork == Fork(
        question="b (LEFTOPD)",
        position=10,
        before=(2, 3, 4, 5, 6, 7, 8, 9),
        written=10,
        student=tuple((i, pytest.approx(p[i].item(), abs=1e-5)) for i in best),
        teacher=fork.teacher,
    )
    # Neither mask nor padding can be said.
    valid = [u for u in range(38) if u not in (MASK, PAD)]
    t = (teacher_hidden[3] @ weight[valid].T).softmax(-1)
    assert fork.teacher == (valid[int(t.argmax())], pytest.approx(t.max().item(), abs=1e-5))


def test_before_the_first_token_is_nothing():
    student = tiny_student(FAMILIES[0])
    fork = fork_of(
        student,
        [Reading("a", [1], [5, 6], [0])],
        torch.tensor([0.5]),
        random(1, WIDTH, seed=0),
        random(1, TEACHER_WIDTH, seed=1),
        random(40, TEACHER_WIDTH, seed=2),
    )
    assert (fork.position, fork.before, fork.written) == (0, (), 5)
