"""Everything that runs on a device, on a simulated one: the same numbers as on the CPU, nothing mixed, few waits."""

from concurrent.futures import Future
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from exact import assert_exact
from questions import Question, plan
from simulated_device import SIM, Simulation
from skips import slow
from state_servers import FakeVllm, serving
from tiny import FAMILIES, STOP, VOCABULARY, family_name, slot_tokenizer, tiny_model, tiny_student, tiny_tokenizer

from forkleft.devices import on_device
from forkleft.evaluate.benchmarks import Benchmark, Item
from forkleft.evaluate.harness import log_likelihoods, model_class
from forkleft.evaluate.prompts import PLAIN
from forkleft.evaluate.protocols import Settings, Try, answer
from forkleft.objective import checks
from forkleft.objective.denoising import Sample, draw, prediction_loss
from forkleft.objective.readouts import all_mask_hidden, prefix_hidden, target_masked_hidden
from forkleft.objective.supervision import ObjectiveSettings
from forkleft.objective.update import update_loss
from forkleft.prompts import Reading
from forkleft.rollout import generate
from forkleft.students import Family, save_student
from forkleft.study.probe import probe_forks, probe_views
from forkleft.teacher import AnswerCache, StateServer, Teacher, load_teacher
from forkleft.train.collect import Clock, Collector
from forkleft.train.config import ForkLeftConfig
from forkleft.train.prepare import prepare_examples
from forkleft.train.traces import traces

PROMPTS = [[5, 9, 2], [7, 1, 3, 3, 8, 30], [4]]
READINGS = [
    Reading("a", PROMPTS[0], [7, 3, 1, 30, 12, 11], [0, 2, 3, 5]),
    Reading("b", PROMPTS[1], [1, 2, 3], []),
    Reading("c", PROMPTS[2], [6, 6, 20, 21, STOP], [1, 4]),
]
BATCH = [
    Question("ce", PROMPTS[0], [7, 3, 1, 30, STOP], True, True, reference=[4, 4, STOP]),
    Question("opd", PROMPTS[1], [6, 6, 20, 21, 22, STOP], False, True, reference=[8, 1, 9, STOP]),
    Question("gold", PROMPTS[2], [1, 2, 3, 36], False, False, reference=[2, 6, 5, STOP]),
    Question("excluded", PROMPTS[2], [1, 2], True, False, reference=[1, STOP]),
]


def case_name(value):
    if isinstance(value, Family):
        return family_name(value)
    return "-".join(getattr(said, "__name__", str(said)) for said in value.values()) or "default"


def by_offset(predictions):
    return predictions.offset_U


def student_on(device, family, **settings):
    student = tiny_student(family, dtype=torch.float64, **settings)
    student.model.to(device)
    return student


def teacher_on(device, tokenizer=None):
    """Of another width, with a padded head."""
    model = tiny_model("qwen2", seed=9, dtype=torch.float64, hidden_size=24, vocab_size=VOCABULARY + 3).to(device)
    return Teacher(model, tokenizer or tiny_tokenizer(), stop_ids=[STOP], batch_size=2)


def gradients(student, loss):
    loss.backward()
    found = {name: parameter.grad for name, parameter in student.model.named_parameters()}
    return {name: getattr(gradient, "held", gradient) for name, gradient in found.items() if gradient is not None}


def assert_same_gradients(student, loss, other, other_loss):
    expected = gradients(other, other_loss)
    for name, gradient in gradients(student, loss).items():
        assert_exact(gradient, expected[name], name)


def test_numbers_reach_a_device_without_a_wait():
    with Simulation() as simulation:
        made = on_device([[1, 2], [3, 4]], SIM, torch.float64)
        assert (made.device, made.dtype, made.held.tolist()) == (SIM, torch.float64, [[1.0, 2.0], [3.0, 4.0]])
        assert on_device([1]).device.type == "cpu"
    assert simulation.waits == []


# ---- Rollouts ----

GREEDY = [
    {"order": "high_entropy", "passes": 3},
    {"order": "low_entropy"},
    {"order": "confidence", "passes": 2},
    {"order": "left_to_right"},
    {"order": "random"},
    {"order": by_offset},
    {"threshold": 0.15},
]
SAMPLED = [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.8, "passes": 2}]
# Only the device knows at how many positions to sample.
TWICE = [{"temperature": 1.0, "threshold": 0.15}]
CASES = [
    *((family, GREEDY + SAMPLED + TWICE) for family in (FAMILIES[3], FAMILIES[6])),
    *((family, GREEDY[:1] + SAMPLED[:1]) for family in (*FAMILIES[:3], *FAMILIES[4:6], FAMILIES[7])),
]


def rollout(student, prompts, **how):
    """The trajectories, and how many passes they took together."""
    passes = []
    handle = student.model.base_model.register_forward_hook(lambda *_: passes.append(1))
    written = generate(student, prompts, max_new_tokens=6, **how)
    handle.remove()
    return written, len(passes)


@pytest.mark.parametrize(
    ("family", "how"),
    [slow(family, how) if family == FAMILIES[6] else (family, how) for family, ways in CASES for how in ways],
    ids=case_name,
)
def test_a_rollout_waits_once_in_a_pass(family, how):
    """Three prompts, two at a time: rows start and end at different times."""
    expected, passes = rollout(student_on("cpu", family), PROMPTS, batch_size=2, **how)
    with Simulation() as simulation:
        student = student_on(SIM, family)
        simulation.waits.clear()
        written, simulated_passes = rollout(student, PROMPTS, batch_size=2, **how)
    assert [t.tokens for t in written] == [t.tokens for t in expected]
    for one, other in zip(written, expected, strict=True):
        assert (one.commit_pass, one.stopped, one.forwards) == (other.commit_pass, other.stopped, other.forwards)
        assert one.entropy == pytest.approx(other.entropy, abs=1e-12)
        assert one.confidence == pytest.approx(other.confidence, abs=1e-12)
    assert simulated_passes == passes
    assert len(simulation.waits) == passes * (2 if how in TWICE else 1), simulation.counted()


@pytest.mark.parametrize("rows", [1, 7])
def test_the_waits_of_a_rollout_do_not_grow_with_its_rows(rows):
    """Nor if somebody watches."""
    shown = []
    with Simulation() as simulation:
        student = student_on(SIM, FAMILIES[0], stop_ids=(36,))
        simulation.waits.clear()
        _, passes = rollout(student, PROMPTS[:1] * rows, passes=2, watch=lambda *one: shown.append(one))
    assert len(simulation.waits) == passes == 4
    assert len(shown) == rows * passes


# ---- Readouts, losses, updates ----


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_a_readout_waits_once(family):
    def readouts(student):
        for geometry in ("truncated", "canvas"):
            for attention in ("native", "full"):
                yield prefix_hidden(student, READINGS, budget=7, geometry=geometry, attention=attention)
        yield target_masked_hidden(student, READINGS, budget=7)
        yield all_mask_hidden(student, READINGS, budget=7)

    expected = list(readouts(student_on("cpu", family)))
    with Simulation() as simulation:
        student = student_on(SIM, family)
        simulation.waits.clear()
        found = list(readouts(student))
    assert len(simulation.waits) == len(found), simulation.counted()
    for one, other in zip(found, expected, strict=True):
        assert one.device == SIM
        assert_exact(one.held, other.detach())


ARMS = [
    {},
    {"view": "target_masked"},
    {"geometry": "canvas"},
    {"attention": "full"},
    {"view": "target_masked", "supervision": "opd", "geometry": "canvas"},
    {"supervision": "sft"},
    {"supervision": "mix"},
    {"supervision": "sft+opd", "merge_stops": True},
]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((FAMILIES[3], changes) for changes in ARMS),
        *(slow(family, changes) for family in (FAMILIES[0], FAMILIES[7]) for changes in ARMS),
    ],
    ids=case_name,
)
def test_an_update_waits_a_handful_of_times(family, changes):
    """Once for each readout, and once for all numbers that are recorded; the backward does not wait."""
    settings = ObjectiveSettings(budget=7, rho=0.5, mu=0.02, **changes)
    results = {}
    with Simulation() as simulation:
        for device in ("cpu", SIM):
            student, teacher = student_on(device, family), teacher_on(device)
            lessons = [plan(question, settings, (STOP,), seed=5, update=3) for question in BATCH]
            asked = {k: Reading(one.name, one.prompt, *one.taught) for k, one in enumerate(lessons) if one.taught}
            for k, hidden_SE in zip(asked, teacher.hidden(list(asked.values())), strict=True):
                lessons[k] = replace(lessons[k], teacher_hidden_SE=hidden_SE)
            simulation.waits.clear()
            weight_VE, forks = teacher.head_weight, []
            loss, outcomes = update_loss(student, lessons, settings, batch_size=5, teacher_weight_VE=weight_VE)
            loss.backward()
            waits = list(simulation.waits)
            update_loss(student, lessons, settings, batch_size=5, teacher_weight_VE=weight_VE, watch=forks.append)
            results[device] = (student, lessons, loss, outcomes, forks)
    views = 2 if settings.view == "target_masked" else 1
    assert len(waits) == views + 2, waits
    assert len(simulation.waits) <= 2 * len(waits) + 2, "a fork waits once for each model"
    (student, _, loss, outcomes, forks), (other, _, other_loss, expected, other_forks) = results[SIM], results["cpu"]
    assert_exact(loss.held, other_loss.detach())
    for name, parameter in student.model.named_parameters():
        assert_exact(parameter.grad.held, other.model.get_parameter(name).grad, name)
    for one, two in zip(outcomes, expected, strict=True):
        for field in fields(one):
            assert getattr(one, field.name) == pytest.approx(getattr(two, field.name), abs=1e-12), field.name
    assert len(forks) == len(other_forks) == (settings.supervision not in ("sft", "mix"))
    for fork, other_fork in zip(forks, other_forks, strict=True):
        assert (fork.question, fork.position, fork.teacher[0]) == (
            other_fork.question,
            other_fork.position,
            other_fork.teacher[0],
        )


@pytest.mark.parametrize("weighting", ["uniform", "1/t"])
@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[3], FAMILIES[7]], ids=family_name)
def test_denoising_waits_once_for_its_sums(family, weighting):
    samples = [Sample(PROMPTS[0], [7, 3, 1, 30, STOP]), Sample(PROMPTS[1], [STOP])]

    def loss_of(student):
        generator = torch.Generator().manual_seed(0)
        tasks = [draw(student, sample, generator, budget=7, weighting=weighting) for sample in samples]
        return prediction_loss(student, tasks, {"denoising": 1 / sum(task.weight for task in tasks)})[0]

    other = student_on("cpu", family)
    expected = loss_of(other)
    with Simulation() as simulation:
        student = student_on(SIM, family)
        simulation.waits.clear()
        loss = loss_of(student)
        assert_exact(loss.held, expected.detach())
        assert_same_gradients(student, loss, other, expected)
    assert len(simulation.waits) == 1


# ---- The teacher, evaluation, doctor, lm-eval, probe ----


def test_the_local_teacher():
    conversations = [[{"role": "user", "content": text}] for text in ("3#7abc", "1", "zz9")]

    def of(teacher):
        kept = []
        answers = teacher.answers(conversations, max_new_tokens=4)
        assert teacher.answers(conversations, max_new_tokens=4, keep=lambda *one: kept.append(one)) == answers
        return answers, sorted(kept), teacher.identity, teacher.hidden(READINGS)

    *expected, expected_hidden = of(teacher_on("cpu"))
    with Simulation() as simulation:
        *found, hidden = of(teacher_on(SIM))
        teacher = teacher_on(SIM)
        teacher.hidden([])  # checks the head, once
        simulation.waits.clear()
        teacher.hidden(READINGS)
        batches = -(-len(READINGS) // teacher.batch_size)
    assert found == expected
    for one, other in zip(hidden, expected_hidden, strict=True):
        assert_exact(one.held, other)
    # Transformers looks once in a forward whether sequences are packed.
    assert len(simulation.waits) <= batches, simulation.counted()


def test_a_teacher_on_a_server(tmp_path, monkeypatch):
    """Its head is on the device; what the server sends is on the CPU, and goes there where a loss needs it."""
    local = teacher_on("cpu", tiny_tokenizer())
    for part in (local.model, local.tokenizer):
        part.save_pretrained(tmp_path)
    settings = ObjectiveSettings(budget=7, rho=0.5, mu=0.02, supervision="opd")
    known = [replace(reading, response=greedy(local, reading), positions=range(6)) for reading in READINGS]

    def at_once(server, asks, over):
        """A simulation is seen by its own thread alone."""
        futures = [Future() for _ in asks]
        for future, ask in zip(futures, asks, strict=True):
            future.set_result(ask())
        return futures

    def of(device, url):
        server = StateServer(url, "teacher", attempts=1)
        remote, student = load_teacher(tmp_path, dtype=torch.float64, server=server), student_on(device, FAMILIES[3])
        remote.place(torch.device(device))
        assert remote.head_weight.device.type == torch.device(device).type
        remote.check(known)
        lessons = [plan(question, settings, (STOP,), seed=5, update=3) for question in BATCH]
        hidden = remote.ask([Reading(lesson.name, lesson.prompt, *lesson.taught) for lesson in lessons])
        lessons = [replace(lesson, teacher_hidden_SE=one) for lesson, one in zip(lessons, hidden, strict=True)]
        how = {"batch_size": 4, "teacher_weight_VE": remote.head_weight}
        forks = []
        update_loss(student, lessons, settings, watch=forks.append, **how)
        simulation.waits.clear()
        return student, update_loss(student, lessons, settings, **how)[0], forks

    # The server's own model is outside of the simulation, in the threads of the server.
    fake = FakeVllm(local.model)
    fake.dtype = torch.float64
    monkeypatch.setattr(StateServer, "begin", at_once)
    with serving(fake) as url, Simulation() as simulation:
        other, expected, other_forks = of("cpu", url)
        student, loss, forks = of(SIM, url)
        # As with the teacher in memory, and once for all hidden states.
        assert len(simulation.waits) == 4, simulation.counted()
        assert_exact(loss.held, expected.detach())
        assert_same_gradients(student, loss, other, expected)
    assert [fork.position for fork in forks] == [fork.position for fork in other_forks]


def greedy(teacher, reading, tokens=6):
    """What the teacher itself writes after a prompt, which it finds likely."""
    ids = list(reading.prompt)
    for _ in range(tokens):
        ids.append(teacher.model(input_ids=torch.tensor([ids])).logits[0, -1, :VOCABULARY].argmax().item())
    return ids[-tokens:]


WRITTEN = Benchmark("written", 3, "generated", "lab", PLAIN, "MIT", max_new_tokens=6)
LETTERS = Benchmark("letters", 3, "slot", "choice", PLAIN, "MIT", max_new_tokens=20)


CHAINS = [Item(f"q{k}", "a=1" + "+2" * k, str(k)) for k in range(3)]
CHOICES = [Item(f"q{k}", "a=" + "1" * k, "ABC"[k], choices=("1", "2", "3", "4")[: 3 + k % 2]) for k in range(3)]


@pytest.mark.parametrize("kind", ["same", "shifted", "full", "teacher"])
def test_evaluation_in_both_protocols(kind):
    family = {"same": FAMILIES[0], "shifted": FAMILIES[3], "full": FAMILIES[6]}.get(kind)

    def replies(device):
        tokenizer = slot_tokenizer()
        student = family is not None
        model = student_on(device, family, tokenizer=tokenizer) if student else teacher_on(device, tokenizer)
        simulation.waits.clear()
        found = answer(model, LETTERS, list(map(Try, CHOICES)), Settings())
        if student:
            assert len(simulation.waits) in (0, 2), simulation.counted()
            found += answer(model, LETTERS, list(map(Try, CHOICES)), Settings(geometry="canvas"))
            sampled = Settings(temperature=1.0, samples=2)
            found += answer(model, WRITTEN, list(map(Try, CHAINS)), sampled)
        return found + answer(model, WRITTEN, list(map(Try, CHAINS)), Settings())

    with Simulation() as simulation:
        expected, found = replies("cpu"), replies(SIM)
    for one, other in zip(found, expected, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-12)
        assert replace(one, log_probs=None) == replace(other, log_probs=None)


@pytest.mark.parametrize("family", [FAMILIES[3], FAMILIES[6]], ids=family_name)
def test_the_checks_of_doctor(family):
    with Simulation():
        findings = checks.examine(student_on(SIM, family))
    assert all(finding.holds for finding in findings if finding.skipped is None), findings


def test_lm_eval(tmp_path):
    """A student that is loaded onto the device reads continuations, and writes."""
    save_student(student_on("cpu", FAMILIES[0], tokenizer=tiny_tokenizer()), tmp_path / "student")
    pairs = [([5, 9, 2], [7]), ([5, 9, 2], [8]), ([4], [7, 1, 3]), ([1, 2], [3, 4, 5])]

    def of(device):
        model = model_class()(str(tmp_path / "student"), device=device, dtype="float64", batch_size=2, max_new_tokens=6)
        requests = [SimpleNamespace(args=(text, {"until": ["#"]}), task_name="t", doc_id=text) for text in ("3#7", "z")]
        return dict(log_likelihoods(model.student, pairs, batch_size=2)), model.generate_until(requests)

    expected, texts = of("cpu")
    with Simulation():
        found, simulated_texts = of("sim:0")
    assert simulated_texts == texts
    for number, (score, greedy) in expected.items():
        assert found[number] == (pytest.approx(score, abs=1e-12), greedy)


def test_the_probe():
    def of(device):
        student = student_on(device, FAMILIES[3])
        written = generate(student, PROMPTS, max_new_tokens=6)
        views = probe_views(student, [READINGS[0], READINGS[2]], budget=7, geometry="canvas")
        return views, probe_forks(student, PROMPTS, written, passes=4, budget=6, geometry="truncated")

    expected = of("cpu")
    with Simulation():
        found = of(SIM)
    for one, other in zip(found, expected, strict=True):
        assert vars(one) == pytest.approx(vars(other), abs=1e-12)


def test_what_is_fixed_before_an_update_and_its_traces(tmp_path):
    rows = [{"id": f"q{k}", "question": f"a{k}b", "answer": str(k), "solution": "xyz#5"} for k in range(3)]
    how = {"passes": 2, "teacher_max_new_tokens": 6, "rho": 1.0, "verifier": "lab", "prompt_template": "{question}"}
    settings = {"max_new_tokens": 6, "supervision": "opd", "reference_template": "{solution}", "report_to": "none"}
    config = ForkLeftConfig(str(tmp_path), **how | settings)

    def of(device):
        student, teacher = student_on(device, FAMILIES[3], tokenizer=tiny_tokenizer()), teacher_on(device)
        examples = prepare_examples(student, teacher, rows, config, config.named_verifier())
        cache = AnswerCache(tmp_path / f"{torch.device(device).type}.jsonl")
        collector = Collector(student, teacher, teacher, cache, config, config.named_verifier())
        written = collector.write(examples, update=1)
        collected = collector.collect(examples, written, update=1, clock=Clock())
        return traces(student, teacher, collected, config.objective_settings(), [2, 1], step=1)

    expected = of("cpu")
    with Simulation():
        found = of(SIM)
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            numbers = name in ("entropy", "confidence", "kl", "contrast") or "entropy" in name or "confidence" in name
            assert one[name] == (pytest.approx(value, abs=1e-12) if numbers else value), name
