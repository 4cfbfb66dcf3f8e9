import math
from dataclasses import fields, replace

import pytest
import torch
from exact import assert_exact, assert_no_worse
from naive import naive_forkleft, naive_question, naive_update
from questions import Question, plan
from tiny import FAMILIES, MASK, PAD, STOP, VOCABULARY, family_name, plain_copy, tiny_model, tiny_student

from forkleft.errors import ForkLeftError
from forkleft.objective import update
from forkleft.objective.routes import Route
from forkleft.objective.supervision import ObjectiveSettings
from forkleft.objective.update import Outcome, update_loss
from forkleft.randomness import keyed_generator
from forkleft.rollout import generate

SEED, UPDATE = 5, 3
# μ is small because random models have small contrasts.
SETTINGS = ObjectiveSettings(budget=12, rho=0.5, mu=0.02)
EVERYTHING = replace(SETTINGS, rho=1.0)
PROMPT = [5, 9, 2, 30, 4]
LONG, SHORT = [7, 3, 1, 30, 12, 11, 9, 8, 2, STOP], [1, 2, 3, 36]
BATCH = [
    # Each route, ended and cut off, with and without a reference.
    Question("ce", PROMPT, LONG, True, True, reference=[4, 4, STOP]),
    Question("ce-cut", PROMPT[:2], SHORT, True, True),
    Question("opd", PROMPT[:3], [6, 6, 20, 21, 22, STOP], False, True, reference=[8, 1, 9, STOP]),
    Question(
        "opd-cut", [*PROMPT, 7, 8, 1], [9, 3, 14, 14, 3, 20, 20, 20, 1, 2, 3, 4], False, True, reference=[3, STOP]
    ),
    Question("gold", PROMPT, SHORT, False, False, reference=[2, 6, 5, 3, 5, 8, STOP]),
    Question("gold-cut", PROMPT[1:], LONG, False, False, reference=[9] * 12),
    Question("no-reference", PROMPT[:1], LONG[:7], False, False),
    Question("excluded", PROMPT, LONG, True, False, reference=[1, 2, STOP]),
    # Nothing to select but EOS, and nothing at all.
    Question("eos-only", PROMPT, [STOP], False, True, reference=[STOP]),
    Question("empty", PROMPT, [3], True, True, reference=[4]),
]
ROUTED = {
    "CE": BATCH[:2],
    "LEFTOPD": BATCH[2:4],
    "GOLD": BATCH[4:7],
    "mixed": BATCH,
}


def draw(question, stream, candidates, n):
    generator = keyed_generator(SEED, UPDATE, question, stream)
    return torch.randperm(candidates, generator=generator)[:n].tolist()


def tiny_teacher(dtype=torch.float64):
    """Of another width, with a padded head."""
    return tiny_model("qwen2", seed=9, dtype=dtype, hidden_size=24, vocab_size=VOCABULARY + 3)


def lessons_of(batch, teacher, settings=SETTINGS, stop_ids=(STOP,)):
    lessons = [plan(question, settings, stop_ids, seed=SEED, update=UPDATE) for question in batch]
    return [taught_lesson(lesson, teacher) for lesson in lessons]


@torch.no_grad()
def taught_lesson(lesson, teacher):
    if lesson.taught is None:
        return lesson
    continuation, positions = lesson.taught
    prompt = lesson.prompt
    hidden = teacher.model(input_ids=torch.tensor([[*prompt, *continuation]])).last_hidden_state[0]
    return replace(lesson, teacher_hidden_SE=hidden[[len(prompt) - 1 + i for i in positions]])


def fast_update(student, batch, teacher, settings=SETTINGS, **changes):
    lessons = lessons_of(batch, teacher, settings, student.vocabulary.stop_ids)
    arguments = {"batch_size": len(batch), "teacher_weight_VE": teacher.lm_head.weight} | changes
    return update_loss(student, lessons, settings, **arguments)


def plain(value):
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.item() if isinstance(value, torch.Tensor) else value


def gradients(model, loss):
    """By parameter; zeros where there is none."""
    loss.backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


def assert_equal_update(student, batch, teacher, settings=SETTINGS, stop_ids=(STOP,)):
    """Loss, every recorded number, and the gradient of every parameter, in float64."""
    model, family = plain_copy(student), student.family
    loss, records = fast_update(student, batch, teacher, settings)
    expected = naive_update(model, family, teacher, batch, settings, draw, stop_ids)
    assert_exact(loss, expected)
    ours = gradients(student.model, loss)
    for name, gradient in gradients(model, expected).items():
        assert_exact(ours[name], gradient, name)
    for question, record in zip(batch, records, strict=True):
        found = naive_question(model, family, teacher, question, settings, draw, stop_ids)
        known = {name: getattr(question, name) for name in ("id", "student_right", "teacher_right")}
        known |= {
            "judged": True,
            "tokens": len(question.response),
            "stopped": question.response[-1] in stop_ids,
            "empty": False,
        }
        known["reference_cut"] = question.reference is not None and question.reference[-1] not in stop_ids
        if found is None:
            assert record == Outcome(route=Route.EXCLUDE, retained=False, **known)
            continue
        content, rank, numbers = found
        numbers |= known | {"content": content, "rank": rank, "retained": True}
        numbers.setdefault("reference_nll", [])
        taught = question.reference if settings.supervision == "mix" else question.response
        numbers["eos_kl"] = numbers["kl"][-1] if numbers["kl"] and taught[-1] in stop_ids else None
        assert numbers.keys() == {field.name for field in fields(Outcome)}
        for name, value in numbers.items():
            ours = getattr(record, name)
            if isinstance(value, str | None):
                assert ours == value, (question.id, name)
            else:
                assert ours == pytest.approx(plain(value), abs=1e-12), (question.id, name)
    return records


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
@pytest.mark.parametrize("view", ["prefix", "target_masked"])
def test_equals_the_naive_update(family, view):
    """All routes mixed, both views, all families, both heads."""
    student = tiny_student(family, dtype=torch.float64)
    assert_equal_update(student, BATCH, tiny_teacher(), replace(SETTINGS, view=view))


@pytest.mark.parametrize("geometry", ["truncated", "canvas"])
@pytest.mark.parametrize("route", ROUTED)
def test_each_route_alone(route, geometry):
    for family in (FAMILIES[0], FAMILIES[3]):
        student = tiny_student(family, dtype=torch.float64, seed=1)
        records = assert_equal_update(student, ROUTED[route], tiny_teacher(), replace(SETTINGS, geometry=geometry))
        assert route == "mixed" or {record.route for record in records} == {route}


@pytest.mark.parametrize(
    ("supervision", "view"),
    [
        ("opd", "prefix"),
        ("opd", "target_masked"),
        ("sft", "prefix"),
        ("sft+opd", "prefix"),
        ("sft+opd", "target_masked"),
        ("mix", "prefix"),
    ],
)
def test_shared_subset_objectives(supervision, view):
    """Every question alike, whatever its verdicts."""
    student = tiny_student(FAMILIES[2], dtype=torch.float64)
    batch = [question for question in BATCH if question.reference is not None]
    settings = replace(SETTINGS, supervision=supervision, view=view, alpha=0.3)
    records = assert_equal_update(student, batch, tiny_teacher(), settings)
    assert all(record.retained and record.content != 0 for record in records if record.id != "empty")


def test_full_attention_in_the_readout_of_a_block_student():
    student = tiny_student(FAMILIES[0], dtype=torch.float64)
    assert_equal_update(student, BATCH, tiny_teacher(), replace(SETTINGS, attention="full"))


def test_tied_head():
    student = tiny_student(FAMILIES[0], dtype=torch.float64, tie_word_embeddings=True)
    assert student.model.lm_head.weight is student.model.model.embed_tokens.weight
    assert_equal_update(student, BATCH, tiny_teacher())


def test_the_algorithm_from_its_first_line():
    """The student writes, the teacher answers, both are verified: the library's rollout and the one by hand agree."""
    student, teacher = tiny_student(FAMILIES[0], dtype=torch.float64), tiny_teacher()
    questions = [replace(question, response=[], reference=[3, 4, STOP]) for question in BATCH[:6]]

    def verify(question, answer):
        return (sum(answer) + len(question.prompt)) % 2 == 0

    by_hand, expected = naive_forkleft(
        plain_copy(student), student.family, teacher, questions, verify, SETTINGS, draw, passes=2
    )
    written = generate(
        student, [q.prompt for q in questions], order="high_entropy", passes=2, max_new_tokens=SETTINGS.budget
    )
    assert [t.tokens for t in written] == [list(q.response) for q in by_hand]
    assert len({(q.student_right, q.teacher_right) for q in by_hand}) >= 3
    loss, _ = fast_update(student, by_hand, teacher)
    assert_exact(loss, expected)


def test_merged_stop_ids():
    student = tiny_student(FAMILIES[0], dtype=torch.float64, stop_ids=(STOP, 36))
    settings = replace(SETTINGS, merge_stops=True)
    merged = assert_equal_update(student, BATCH[2:4], tiny_teacher(), settings, stop_ids=(STOP, 36))
    _, apart = fast_update(student, BATCH[2:4], tiny_teacher())
    assert all(sum(one.kl) < sum(two.kl) for one, two in zip(merged, apart, strict=True))


@pytest.mark.parametrize("rho", [0.0, 1.0])
def test_nothing_and_everything_selected(rho):
    student = tiny_student(FAMILIES[0], dtype=torch.float64)
    assert_equal_update(student, BATCH, tiny_teacher(), replace(SETTINGS, rho=rho))


def test_no_qualifying_pairs():
    student = tiny_student(FAMILIES[0], dtype=torch.float64)
    records = assert_equal_update(student, BATCH, tiny_teacher(), replace(SETTINGS, mu=100.0))
    assert all(record.pairs == 0 and record.rank == 0 for record in records)


def test_pairs_do_qualify():
    """Otherwise the ranking would be compared with nothing."""
    _, records = fast_update(tiny_student(FAMILIES[0], dtype=torch.float64), BATCH, tiny_teacher())
    assert sum(record.rank > 0 for record in records) >= 4


def test_gradient_checkpointing():
    student = tiny_student(FAMILIES[0], dtype=torch.float64)
    student.model.train()
    student.model.gradient_checkpointing_enable()
    assert_equal_update(student, BATCH, tiny_teacher())


def numbers(loss, of_questions):
    """The loss, and what was read at every position."""
    names = ("nll", "kl", "confidence", "left_entropy", "mask_entropy", "reference_nll")
    found = [plain(one.get(name, [])) for one in of_questions for name in names]
    return torch.tensor([loss.item(), *(value for values in found for value in values)], dtype=torch.float64)


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_lower_precision_is_as_exact_as_the_naive_update(autocast):
    """In float32, and with products in bfloat16: all numbers and gradients."""
    # Which pairs are ranked is no matter of how exact: one more or less is another loss.
    settings = replace(SETTINGS, rank_weight=0.0)
    student = tiny_student(FAMILIES[0])
    family = student.family

    def naive(model, teacher):
        loss = naive_update(model, family, teacher, BATCH, settings, draw)
        found = [naive_question(model, family, teacher, question, settings, draw) for question in BATCH]
        return loss, numbers(loss, [one[-1] for one in found if one is not None])

    precise, model = plain_copy(tiny_student(FAMILIES[0], dtype=torch.float64)), plain_copy(student)
    exact_loss, exact = naive(precise, tiny_teacher())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss, records = fast_update(student, BATCH, tiny_teacher(torch.float32), settings)
        plain_loss, theirs = naive(model, tiny_teacher(torch.float32))
    assert loss.dtype is torch.float32
    assert_no_worse(numbers(loss, [vars(one) for one in records if one.retained]), theirs, exact, dtype=torch.float32)
    ours, by_hand = gradients(student.model, loss), gradients(model, plain_loss)
    for name, gradient in gradients(precise, exact_loss).items():
        assert_no_worse(ours[name], by_hand[name], gradient, name)


def test_the_original_batch_is_the_denominator():
    """Excluded questions count; so do those of other processes. Parts of a batch add up to the whole."""
    student, teacher = tiny_student(FAMILIES[0], dtype=torch.float64), tiny_teacher()
    whole, records = fast_update(student, BATCH, teacher)
    total = sum(record.content + SETTINGS.rank_weight * record.rank for record in records)
    assert whole.item() == pytest.approx(total / len(BATCH), abs=1e-12)
    parts = [fast_update(student, part, teacher, batch_size=len(BATCH))[0] for part in (BATCH[:4], BATCH[4:])]
    assert sum(parts).item() == pytest.approx(whole.item(), abs=1e-12)


def test_all_excluded():
    student = tiny_student(FAMILIES[0])
    batch = [replace(question, student_right=True, teacher_right=False) for question in BATCH]
    loss, records = fast_update(student, batch, tiny_teacher(torch.float32))
    assert loss.item() == 0
    assert not any(record.retained for record in records)
    # With other processes at work this one takes part: every parameter gets its gradient, of zeros.
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() == 0 for p in student.model.parameters())
    assert naive_update(None, None, None, batch, SETTINGS, draw) is None


def test_batch_order_does_not_matter():
    student, teacher = tiny_student(FAMILIES[0], dtype=torch.float64), tiny_teacher()
    loss, records = fast_update(student, BATCH, teacher)
    reverse_loss, reverse = fast_update(student, BATCH[::-1], teacher)
    assert loss.item() == pytest.approx(reverse_loss.item(), abs=1e-12)
    assert [record.positions for record in reverse[::-1]] == [record.positions for record in records]


@pytest.mark.parametrize("view", ["prefix", "target_masked"])
def test_the_number_of_forwards_does_not_depend_on_the_lessons(view, monkeypatch):
    """Otherwise processes that share parameters would wait for each other for ever."""
    student, teacher = tiny_student(FAMILIES[0]), tiny_teacher(torch.float32)
    calls = []
    hidden = student.hidden
    monkeypatch.setattr(student, "hidden", lambda *arguments: calls.append(1) or hidden(*arguments))
    counts = []
    for batch in (BATCH, BATCH[:1], BATCH[4:5], BATCH[7:8], BATCH[9:], []):
        calls.clear()
        fast_update(student, batch, teacher, replace(SETTINGS, view=view), batch_size=10)
        counts.append(len(calls))
    assert set(counts) == {2 if view == "prefix" else 3}


def test_nothing_selected_needs_no_teacher_and_trains_under_a_frozen_head():
    student = tiny_student(FAMILIES[0])
    student.model.lm_head.weight.requires_grad_(False)
    lesson = plan(replace(BATCH[2], response=[3]), SETTINGS, (STOP,), seed=0, update=0)
    assert lesson.taught is None
    loss, (record,) = update_loss(student, [lesson], SETTINGS, batch_size=1)
    assert (loss.item(), record.route, record.kl) == (0, Route.LEFTOPD, ())
    loss.backward()


def test_a_teacher_elsewhere_is_waited_for_only_after_all_forwards_of_the_student(monkeypatch):
    """It reads while the student does; the numbers are the same."""
    student, teacher = tiny_student(FAMILIES[0], dtype=torch.float64), tiny_teacher()
    expected = fast_update(student, BATCH, teacher)
    lessons = lessons_of(BATCH, teacher)
    happened, forward = [], type(student.model.base_model).forward

    def noted(model, *inputs, **settings):
        happened.append("forward")
        return forward(model, *inputs, **settings)

    def waits(hidden_SE):
        def wait():
            happened.append("wait")
            return hidden_SE

        return wait

    awaited = [
        lesson if lesson.taught is None else replace(lesson, teacher_hidden_SE=waits(lesson.teacher_hidden_SE))
        for lesson in lessons
    ]
    monkeypatch.setattr(type(student.model.base_model), "forward", noted)
    found = update_loss(student, awaited, SETTINGS, batch_size=len(BATCH), teacher_weight_VE=teacher.lm_head.weight)
    taught = sum(lesson.taught is not None for lesson in lessons)
    assert taught > 1
    assert happened == ["forward"] * 2 + ["wait"] * taught
    assert found == expected


def test_ranking_alone():
    student = tiny_student(FAMILIES[0], dtype=torch.float64)
    only_rank = [replace(question, student_right=False, teacher_right=False, reference=None) for question in BATCH]
    records = assert_equal_update(student, only_rank, tiny_teacher())
    assert all(record.content == 0 for record in records)
    assert sum(record.rank > 0 for record in records) >= 4


def wrong(question, teacher_rows=None, **changes):
    """An update in which the third of four lessons is wrong."""
    student, teacher = tiny_student(FAMILIES[0]), tiny_teacher(torch.float32)
    lessons = lessons_of([BATCH[1], BATCH[3], question, BATCH[6]], teacher)
    if teacher_rows is not None:
        lessons[2] = replace(lessons[2], teacher_hidden_SE=teacher_rows(lessons[2].teacher_hidden_SE))
    arguments = {"batch_size": 4, "teacher_weight_VE": teacher.lm_head.weight} | changes
    update_loss(student, lessons, SETTINGS, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"question": replace(BATCH[0], response=[3, PAD, 2])}, r"question ce \(CE\): the response holds 1 id"),
        ({"question": replace(BATCH[4], reference=[MASK, 2])}, r"question gold \(GOLD\), reference: .* holds 1 id"),
        (
            {"question": BATCH[2], "teacher_rows": lambda h: h[:-1]},
            r"opd \(LEFTOPD\): 4 positions .* for 3",
        ),
        ({"question": BATCH[2], "teacher_rows": lambda h: h * math.nan}, r"opd \(LEFTOPD\): .* does not sum to one"),
        ({"question": BATCH[2], "teacher_weight_VE": None}, r"\(LEFTOPD\): .* width 24, its output head has None"),
        ({"question": BATCH[2], "teacher_weight_VE": torch.ones(43, 8)}, r"\(LEFTOPD\): .* its output head has 8"),
        ({"question": replace(BATCH[0], response=LONG * 2)}, "a stop id already at position 9; cut it there"),
        ({"question": replace(BATCH[1], response=SHORT * 4)}, r"ce-cut \(CE\): a response of 16 tokens exceeds"),
        ({"question": replace(BATCH[0], prompt=[])}, r"ce \(CE\): the prompt is empty"),
        ({"question": BATCH[0], "batch_size": 0}, "4 lessons here, but batch_size says 0"),
    ],
)
def test_bad_input_names_question_and_route(arguments, message):
    with pytest.raises(ForkLeftError, match=message):
        wrong(**arguments)


def test_a_loss_that_is_not_finite_stops(monkeypatch):
    student, teacher = tiny_student(FAMILIES[0]), tiny_teacher(torch.float32)
    head_rows = update.head_rows

    def broken(*arguments, **options):
        """Of all rows, those of one question's response are not finite."""
        rows = head_rows(*arguments, **options)
        return replace(rows, nll_S=torch.where(arguments[2] == 36, math.nan, rows.nll_S))

    monkeypatch.setattr(update, "head_rows", broken)
    with pytest.raises(ForkLeftError, match=r"question ce-cut \(CE\): the loss is nan"):
        fast_update(student, [BATCH[0], replace(BATCH[1], response=[1, 2, 36, STOP]), BATCH[2]], teacher, EVERYTHING)


def test_an_objective_that_needs_a_reference_says_so():
    with pytest.raises(ForkLeftError, match=r"question ce-cut \(CE\): sft needs a reference, found none"):
        plan(BATCH[1], replace(SETTINGS, supervision="sft"), (STOP,), seed=0, update=0)


@pytest.mark.parametrize("view", ["prefix", "target_masked"])
def test_the_fork_is_told_without_changing_the_update(view):
    student, teacher = tiny_student(FAMILIES[0], dtype=torch.float64), tiny_teacher()
    settings = replace(SETTINGS, view=view)
    forks = []
    loss, records = fast_update(student, BATCH, teacher, settings, watch=forks.append)
    unwatched, same = fast_update(student, BATCH, teacher, settings)
    assert (loss.item(), records) == (unwatched.item(), same)
    (fork,) = forks
    (question,) = (question for question in BATCH if fork.question == f"{question.id} (LEFTOPD)")
    (record,) = (record for record in records if record.id == question.id)
    assert fork.position in record.positions and fork.written == question.response[fork.position]
    if view == "prefix":
        taught = [entropy for record in records if record.kl for entropy in record.left_entropy]
        k = record.positions.index(fork.position)
        assert record.left_entropy[k] == max(taught)
        assert fork.student[0][1] == pytest.approx(math.exp(record.confidence[k]), abs=1e-6)


def test_no_fork_is_told_where_no_teacher_was_asked_on_a_response():
    student, teacher = tiny_student(FAMILIES[0], dtype=torch.float64), tiny_teacher()
    forks = []
    fast_update(student, ROUTED["CE"], teacher, watch=forks.append)
    referenced = [question for question in BATCH if question.reference is not None]
    fast_update(student, referenced, teacher, replace(SETTINGS, supervision="mix"), watch=forks.append)
    assert forks == []
