import pytest
import torch
from exact import assert_exact
from tiny import tiny_student

from forkleft.errors import ForkLeftError
from forkleft.objective.readouts import prefix_hidden
from forkleft.prompts import Reading
from forkleft.rollout import generate
from forkleft.students import Family
from forkleft.students.compiling import compile_layers

READINGS = [
    Reading("a", [5, 9, 2], [7, 3, 1, 30, 12, 11, 9, 8, 2, 20, 21], [0, 3, 4, 7, 10]),
    Reading("b", [7, 1, 3, 3, 8, 30, 2, 11], [1, 2, 3, 4, 5, 6], list(range(6))),
]
PROMPTS = [[5, 9, 2], [7, 1, 3, 3, 8], [4]]


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def read(student, readings):
    """Hidden states and the gradient of every parameter."""
    hidden = prefix_hidden(student, readings, budget=14)
    student.model.zero_grad()
    hidden.square().sum().backward()
    return hidden, {name: p.grad for name, p in student.model.named_parameters() if p.grad is not None}


def tokens(student):
    return [t.tokens for t in generate(student, PROMPTS, order="high_entropy", passes=2, max_new_tokens=12)]


def assert_compiled_is_the_same(family, backend, architecture="qwen3"):
    student, plain = (tiny_student(family, architecture, dtype=torch.float64) for _ in range(2))
    compile_layers(student, backend=backend)
    # The second has other lengths.
    for readings in (READINGS, READINGS[:1]):
        (hidden, gradients), (expected, expected_gradients) = (read(x, readings) for x in (student, plain))
        assert_exact(hidden, expected)
        assert gradients.keys() == expected_gradients.keys()
        for name, gradient in expected_gradients.items():
            assert_exact(gradients[name], gradient, name)
    assert tokens(student) == tokens(plain)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    return student


@pytest.mark.slow
@pytest.mark.parametrize("family", [Family("block", 4), Family("full", 4, head="shifted")], ids=["block", "full"])
def test_compiled_layers_compute_the_same(family):
    """Readouts with gradients and rollouts, traced and differentiated as for kernels, but without making them."""
    student = assert_compiled_is_the_same(family, "aot_eager")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    read(student, [Reading("c", [4, 4, 6, 1], [9, 9, 2, 37, 5, 6, 7], [2, 5])])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before, "compiled again for other lengths"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_kernels_compute_the_same(architecture):
    assert_compiled_is_the_same(Family("block", 4), "inductor", architecture)


def test_names_of_weights_stay():
    student = tiny_student(Family("block", 4))
    before = list(student.model.state_dict())
    compile_layers(student, backend="aot_eager")
    assert list(student.model.state_dict()) == before


def test_a_machine_without_a_compiler(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ForkLeftError, match=r"needs a C\+\+ compiler on a CPU, found none of g\+\+"):
        compile_layers(tiny_student(Family("block", 4)))
