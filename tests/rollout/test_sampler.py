import itertools
from dataclasses import replace

import pytest
import torch
from exact import assert_no_worse
from naive import entropy, naive_generate, plain_logits
from skips import slow
from tiny import ARCHITECTURES, FAMILIES, MASK, PAD, STOP, VOCABULARY, family_name, plain_copy, tiny_student

from forkleft.errors import ForkLeftError
from forkleft.randomness import keyed_generator
from forkleft.rollout import generate, sampler
from forkleft.students import Family

BLOCK = Family("block", 4)
PROMPTS = [[5, 9, 2], [7, 1, 3, 3, 8, 30, 2, 11], [4], [12, 13, 14, 15, 16], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]]


def assert_same(trajectory, expected):
    tokens, record, stopped, forwards = expected
    assert trajectory.tokens == tokens
    assert trajectory.commit_pass == [entry[0] for entry in record]
    assert trajectory.entropy == pytest.approx([entry[1] for entry in record], abs=1e-12)
    assert trajectory.confidence == pytest.approx([entry[2] for entry in record], abs=1e-12)
    assert (trajectory.stopped, trajectory.forwards) == (stopped, forwards)


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
@pytest.mark.parametrize("order", ["high_entropy", "low_entropy", "confidence", "left_to_right"])
def test_equals_the_naive_sampler(family, order):
    """Ragged prompts, blocks that do and do not divide them, a last short block; float64 leaves nothing to rounding."""
    student = tiny_student(family, dtype=torch.float64)
    model = plain_copy(student)
    for passes, budget in ((4, 14), (2, 12), (3, 5), (9, 3)):
        written = generate(student, PROMPTS, order=order, passes=passes, max_new_tokens=budget, batch_size=3)
        for prompt, trajectory in zip(PROMPTS, written, strict=True):
            expected = naive_generate(model, family, prompt, budget=budget, passes=passes, order=order)
            assert_same(trajectory, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture(architecture):
    for family in (FAMILIES[1], FAMILIES[2], FAMILIES[4], FAMILIES[7]):
        student = tiny_student(family, architecture, dtype=torch.float64, seed=1)
        model = plain_copy(student)
        written = generate(student, PROMPTS, order="high_entropy", passes=3, max_new_tokens=10, batch_size=2)
        for prompt, trajectory in zip(PROMPTS, written, strict=True):
            expected = naive_generate(model, family, prompt, budget=10, passes=3, order="high_entropy")
            assert_same(trajectory, expected)


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_a_row_does_not_depend_on_its_neighbours(family):
    """Rows leave when a stop id comes and waiting prompts take their place; alone a prompt gives the same tokens."""
    student = tiny_student(family, dtype=torch.float64, stop_ids=(STOP, 3, 17, 20))
    generator = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(0, 37, (int(length),), generator=generator).tolist()
        for length in torch.randint(1, 15, (12,), generator=generator)
    ]
    settings = {"order": "high_entropy", "passes": 3, "max_new_tokens": 22}
    together = generate(student, prompts, batch_size=4, **settings)
    assert len({len(t.tokens) for t in together}) > 3  # they really end in different places
    for prompt, trajectory in zip(prompts, together, strict=True):
        alone = generate(student, [prompt], **settings)[0]
        assert trajectory.tokens == alone.tokens
        assert trajectory.commit_pass == alone.commit_pass
        assert trajectory.forwards == alone.forwards
        assert trajectory.entropy == pytest.approx(alone.entropy, abs=1e-12)


SLOW = [slow(family) for family in FAMILIES[1:-1]]


@pytest.mark.parametrize("family", [FAMILIES[0], *SLOW, FAMILIES[-1]], ids=family_name)
def test_a_stop_id_in_every_place(family):
    """Whatever is written at a place is made the stop id: the response is cut there, at its first occurrence."""
    places = set()
    for seed in itertools.count():
        places |= stop_places(family, seed, against_naive=seed == 0)
        if places == set(range(13)):
            return
        assert seed < 40, f"no response stopped at {set(range(13)) - places}"


def stop_places(family, seed, against_naive):
    free = generate(
        tiny_student(family, dtype=torch.float64, seed=seed, stop_ids=(36,)), [PROMPTS[0]], max_new_tokens=13
    )[0].tokens
    if len(free) < 13:
        return set()
    places = set()
    for token in set(free):
        stopping = tiny_student(family, dtype=torch.float64, seed=seed, stop_ids=(token,))
        trajectory = generate(stopping, [PROMPTS[0]], max_new_tokens=13)[0]
        assert trajectory.stopped
        assert trajectory.tokens == free[: free.index(token) + 1]
        places.add(len(trajectory.tokens) - 1)
        if not against_naive:
            continue
        assert len(trajectory.entropy) == len(trajectory.commit_pass) == len(trajectory.tokens)
        expected = naive_generate(
            plain_copy(stopping), family, PROMPTS[0], budget=13, passes=4, order="confidence", stop_ids=(token,)
        )
        assert_same(trajectory, expected)
    return places


@pytest.mark.parametrize("threshold", [0.0, 0.15, 0.5, 1.0])
def test_threshold_rule(threshold):
    """Every position above the threshold is committed, and at least one, or as many as the passes ask for."""
    for family, passes in itertools.product((FAMILIES[0], FAMILIES[3], FAMILIES[6]), (4, 2)):
        student = tiny_student(family, dtype=torch.float64)
        written = generate(student, PROMPTS, threshold=threshold, passes=passes, max_new_tokens=10)
        for prompt, trajectory in zip(PROMPTS, written, strict=True):
            expected = naive_generate(
                plain_copy(student), family, prompt, budget=10, passes=passes, order="confidence", threshold=threshold
            )
            assert_same(trajectory, expected)
            if threshold == 0.0:
                assert set(trajectory.commit_pass) == {1}


def test_random_order_is_keyed_by_seed_and_question():
    student = tiny_student(BLOCK, dtype=torch.float64)
    settings = {"order": "random", "max_new_tokens": 12}

    def orders(seed, ids, batch_size=32):
        written = generate(student, PROMPTS, seed=seed, ids=list(ids), batch_size=batch_size, **settings)
        return [trajectory.commit_pass for trajectory in written]

    one = generate(student, PROMPTS, seed=1, ids=list("abcde"), **settings)
    assert orders(1, "abcde") == orders(1, "abcde", batch_size=2) == [trajectory.commit_pass for trajectory in one]
    assert orders(1, "abcde") != orders(2, "abcde")
    assert orders(1, "abcde") != orders(1, "fghij")
    # One stream for each question, one draw for each position of a block as it is opened.
    stream = keyed_generator(1, "b", 0, "order")
    noise = torch.cat([torch.rand(4, generator=stream, dtype=torch.float64) for _ in range(3)]).tolist()
    expected = naive_generate(plain_copy(student), BLOCK, PROMPTS[1], budget=12, passes=4, order="random", noise=noise)
    assert_same(one[1], expected)


def test_an_order_may_be_a_function():
    student = tiny_student(BLOCK, dtype=torch.float64)
    settings = {"max_new_tokens": 12, "passes": 3, "seed": 1}
    for name, order in (
        ("high_entropy", lambda p: p.entropy_U),
        ("left_to_right", lambda p: -p.offset_U),
        ("random", lambda p: p.noise_U),
    ):
        assert generate(student, PROMPTS, order=order, **settings) == generate(student, PROMPTS, order=name, **settings)


def right_to_left(predictions):
    return predictions.offset_U


def test_an_order_of_its_own():
    student = tiny_student(BLOCK, dtype=torch.float64, stop_ids=(STOP,))
    (written,) = generate(student, PROMPTS[:1], order=right_to_left, max_new_tokens=8)
    assert written.commit_pass == [4, 3, 2, 1, 4, 3, 2, 1][: len(written.tokens)]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (
            lambda p: p.entropy_U[:1],
            r"the order <lambda> must return a tensor of shape \(4,\), found one of shape \(1,\)",
        ),
        (lambda p: 0.5, r"the order <lambda> must return a tensor of shape \(4,\), found 0.5"),
        (lambda p: p.entropy_U / 0, "the order <lambda> must return finite numbers, found NaN or infinity"),
    ],
)
def test_an_order_that_gives_no_priority(order, message):
    with pytest.raises(ForkLeftError, match=message):
        generate(tiny_student(BLOCK), PROMPTS[:1], order=order, max_new_tokens=8)


def test_sampling_is_keyed_and_row_independent():
    student = tiny_student(BLOCK, dtype=torch.float64)

    def tokens(prompts, seed=5, **settings):
        written = generate(student, prompts, temperature=1.0, max_new_tokens=12, seed=seed, **settings)
        return [trajectory.tokens for trajectory in written]

    together = tokens(PROMPTS, batch_size=2)
    assert together == tokens(PROMPTS, batch_size=2) == [tokens([prompt])[0] for prompt in PROMPTS]
    assert together != tokens(PROMPTS, seed=6, batch_size=2)
    # By default the prompt is the key; ids of the caller's take its place.
    assert tokens([PROMPTS[1]], ids=["x"]) != tokens([PROMPTS[1]], ids=["y"])
    # A question that is asked several times is sampled anew each time (avg@k).
    again = tokens([PROMPTS[1]] * 4)
    assert len(set(map(tuple, again))) == 4
    assert again[0] == tokens([PROMPTS[1]])[0]
    # Almost no temperature, or almost no mass, is the argmax.
    argmax = [t.tokens for t in generate(student, PROMPTS, max_new_tokens=12)]
    for greedy in ({"temperature": 1e-4}, {"temperature": 1.0, "top_p": 1e-6}):
        assert [t.tokens for t in generate(student, PROMPTS, max_new_tokens=12, **greedy)] == argmax


def test_forwards_are_blocks_times_passes():
    """No commit pass of its own, no prefill of its own."""
    student = tiny_student(BLOCK, stop_ids=(36,), seed=3, dtype=torch.float64)
    calls = []
    student.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    written = generate(student, [PROMPTS[0], PROMPTS[3]], passes=4, max_new_tokens=16)
    assert [t.stopped for t in written] == [False, False]
    assert len(calls) == 4 * 4
    assert [t.forwards for t in written] == [16, 16]


def test_the_mode_and_the_gradient_state_are_left_alone():
    student = tiny_student(BLOCK)
    student.model.train()
    student.model.gradient_checkpointing_enable()
    frozen = student.model.base_model.layers[0].mlp.eval()
    expected = generate(tiny_student(BLOCK), PROMPTS, max_new_tokens=8)
    assert generate(student, PROMPTS, max_new_tokens=8) == expected
    assert student.model.training and not frozen.training
    assert torch.is_grad_enabled()


def commits(student, budget, **settings):
    """Every commit: the prompt's length, the canvas before its pass, the position, and the entropy it was made at."""
    before = {number: [MASK] * budget for number in range(len(PROMPTS))}
    found = []

    def watch(number, ids, entropies):
        prompt, canvas = PROMPTS[number], before[number]
        for i, token in enumerate(ids):
            if canvas[i] == MASK and token != MASK:
                found.append((len(prompt), [*prompt, *canvas], len(prompt) + i, entropies[i]))
        before[number] = [*ids, *[MASK] * (budget - len(ids))]

    generate(student, PROMPTS, max_new_tokens=budget, watch=watch, **settings)
    return found


@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[3], FAMILIES[7]], ids=family_name)
def test_lower_precision_is_as_exact_as_the_whole_canvas(family, precision):
    """Also under autocast, as training runs on a GPU, and with the weights themselves in bfloat16.

    What is written may follow another branch than in float64; so both are asked about the canvas that was there.
    """
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    student = tiny_student(family, dtype=dtype)
    model, exact = plain_copy(student), plain_copy(student).double()

    def by_hand(model):
        places = [(prompt, ids, target - (family.head == "shifted")) for prompt, ids, target, _ in made]
        rows = [plain_logits(model, family, ids, prompt)[place] for prompt, ids, place in places]
        logp = [row.to(torch.promote_types(row.dtype, torch.float32)).log_softmax(-1) for row in rows]
        return torch.tensor([entropy(row) for row in logp], dtype=torch.float64)

    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"):
        made = commits(student, 10, order="high_entropy", passes=3)
        theirs = by_hand(model)
    assert len(made) > 3 * len(PROMPTS)
    ours = torch.tensor([found for *_, found in made])
    with torch.no_grad():
        assert_no_worse(ours, theirs, by_hand(exact))


def test_mask_and_pad_are_never_written():
    student = tiny_student(BLOCK)
    with torch.no_grad():  # a head that loves mask or pad above all
        weight = student.model.get_output_embeddings().weight
        weight[MASK], weight[PAD] = 100 * weight[3], -100 * weight[3]
    tokens = [token for t in generate(student, PROMPTS, max_new_tokens=16) for token in t.tokens]
    assert not {MASK, PAD} & set(tokens)


def test_nothing_to_write():
    assert generate(tiny_student(BLOCK), [], max_new_tokens=4) == []


@pytest.mark.parametrize(
    ("prompts", "settings", "message"),
    [
        ([[]], {}, "prompt 0: the prompt is empty"),
        ([[1], [2, MASK]], {}, f"prompt 1: the prompt contains the mask token \\(id {MASK}\\)"),
        ([[1] * 120], {}, "a prompt of 120 tokens and a response of up to 9 exceed the model's context of 128"),
        ([[VOCABULARY]], {}, "outside the model's embeddings"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, found 0"),
        ([[1]], {"max_new_tokens": 4.5}, "max_new_tokens must be a whole number of at least 1, found 4.5"),
        ([[1]], {"passes": 0}, "passes must be a whole number of at least 1, found 0"),
        ([[1]], {"batch_size": 0}, "batch_size must be a whole number of at least 1, found 0"),
        (["text"], {}, "prompt 0: expected a list of token ids, found 'text'; encode the text first"),
        ([1, 2, 3], {}, "prompt 0: expected a list of token ids, found 1"),
        (torch.tensor([[1, 2]]), {}, "expected a list of prompts, found a Tensor"),
        ([[1]], {"order": "entropy"}, "order must be one of high_entropy, low_entropy, .*found 'entropy'"),
        ([[1]], {"threshold": 1.5}, "threshold is a probability: expected 0 to 1, found 1.5"),
        ([[1]], {"temperature": -1}, "temperature must be 0"),
        ([[1]], {"top_p": 0}, "top_p must be above 0"),
        ([[1]], {"ids": ["a", "b"]}, "ids must name each of the 1 prompts, found 2"),
    ],
)
def test_bad_input(prompts, settings, message):
    with pytest.raises(ForkLeftError, match=message):
        generate(tiny_student(BLOCK), prompts, **({"max_new_tokens": 9} | settings))


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"threshold": 0.15}])
def test_logits_of_a_few_rows_at_a_time_write_the_same(monkeypatch, settings):
    student = tiny_student(BLOCK, dtype=torch.float64)
    expected = generate(student, PROMPTS, max_new_tokens=12, passes=2, **settings)
    monkeypatch.setattr(sampler, "TABLE_NUMBERS", 3 * VOCABULARY)
    assert generate(student, PROMPTS, max_new_tokens=12, passes=2, **settings) == [
        replace(
            one,
            entropy=pytest.approx(one.entropy, abs=1e-12),
            confidence=pytest.approx(one.confidence, abs=1e-12),
        )
        for one in expected
    ]


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "top_p": 0.5}])
def test_logits_that_are_not_finite_name_the_question(settings):
    student = tiny_student(BLOCK)
    with torch.no_grad():
        student.model.get_input_embeddings().weight[30] = float("nan")
    with pytest.raises(ForkLeftError, match="question q1: the student's logits are not finite in pass 1 of the block"):
        generate(student, PROMPTS, max_new_tokens=8, ids=[f"q{k}" for k in range(5)], **settings)


@pytest.mark.parametrize(
    "family",
    [
        Family("block", 8, "absolute", "shifted", sub_block=2),
        Family("block", 8, "prompt_end", "same", sub_block=4),
        Family("full", 8, head="shifted", sub_block=4),
    ],
    ids=family_name,
)
def test_sub_blocks_are_filled_one_after_the_other(family):
    student = tiny_student(family, dtype=torch.float64)
    model = plain_copy(student)
    for passes, budget in ((4, 14), (2, 19), (1, 5)):
        written = generate(student, PROMPTS, passes=passes, max_new_tokens=budget, batch_size=3)
        for prompt, trajectory in zip(PROMPTS, written, strict=True):
            expected = naive_generate(model, family, prompt, budget=budget, passes=passes, order="confidence")
            assert_same(trajectory, expected)


def test_every_pass_can_be_watched():
    student = tiny_student(BLOCK, stop_ids=(STOP,))
    seen = {}
    written = generate(
        student,
        PROMPTS[:2],
        passes=2,
        max_new_tokens=8,
        watch=lambda number, ids, entropies: seen.setdefault(number, []).append((ids, entropies)),
    )
    for number, trajectory in enumerate(written):
        assert len(seen[number]) == trajectory.forwards
        ids, entropies = seen[number][-1]
        count = len(trajectory.tokens)
        assert (ids[:count], entropies[:count]) == (trajectory.tokens, trajectory.entropy)
        masked = [sum(i == MASK for i in ids) for ids, _ in seen[number]]
        assert masked[0] == 2 and masked[1] == 0
