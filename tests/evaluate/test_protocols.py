import dataclasses

import pytest
import torch
from naive import naive_answer, naive_generate, prefix_log_probs
from tiny import FAMILIES, STOP, family_name, plain_copy, tiny_model, tiny_student
from tiny import slot_tokenizer as tokenizer

from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import Benchmark, Item
from forkleft.evaluate.prompts import PLAIN
from forkleft.evaluate.protocols import Settings, Try, answer, check_protocol, letter_ids
from forkleft.prompts import prompt_ids
from forkleft.teacher import Answer, Teacher
from forkleft.verify import Judgement, Verifier, verify

WRITTEN = Benchmark("written", 5, "generated", "lab", PLAIN, "MIT", max_new_tokens=12)
LETTERS = Benchmark("letters", 5, "slot", "choice", PLAIN, "MIT", max_new_tokens=20)
CHAINS = [Item(f"q{k}", "a=1" + "+2" * k, str(k)) for k in range(5)]
# Ragged prompts, and not as many letters everywhere.
CHOICES = [Item(f"q{k}", "a=" + "1" * k, "ABC"[k % 3], choices=("1", "2", "3", "4")[: 3 + k % 2]) for k in range(5)]


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(tiny_model(seed=3, dtype=torch.float64), tokenizer(), stop_ids=[STOP], batch_size=3)


def tries(items):
    return [Try(item) for item in items]


@pytest.mark.parametrize("geometry", ["truncated", "canvas"])
@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_a_student_reads_the_slot_as_a_plain_forward_does(family, geometry):
    student = tiny_student(family, tokenizer=tokenizer(), dtype=torch.float64)
    model, settings = plain_copy(student), Settings(geometry=geometry)
    for item, reply in zip(CHOICES, answer(student, LETTERS, tries(CHOICES), settings), strict=True):
        prompt = student.tokenizer.encode(LETTERS.messages(item)[0]["content"], add_special_tokens=False)
        prefix = student.tokenizer.encode('"answer": "', add_special_tokens=False)
        logp_V = prefix_log_probs(model, family, prompt, prefix, len(prefix), budget=20, geometry=geometry)
        expected = {a: logp_V[student.tokenizer.get_vocab()[a]].item() for a in "ABCD"[: len(item.choices)]}
        assert reply.log_probs == pytest.approx(expected, abs=1e-12)
        assert reply.extracted == max(expected, key=expected.get)
        assert reply.correct == (reply.extracted == item.answer)
        assert (reply.prompt, reply.response, reply.tokens, reply.forwards) == (prompt, None, 1, 1)


@torch.no_grad()
def test_an_autoregressive_model_reads_its_next_token(teacher):
    for item, reply in zip(CHOICES, answer(teacher, LETTERS, tries(CHOICES), Settings()), strict=True):
        text = LETTERS.messages(item)[0]["content"] + '"answer": "'
        ids = teacher.tokenizer.encode(text, add_special_tokens=False)
        logp_V = teacher.model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        expected = {a: logp_V[teacher.tokenizer.get_vocab()[a]].item() for a in "ABCD"[: len(item.choices)]}
        assert reply.log_probs == pytest.approx(expected, abs=1e-12)
        assert reply.extracted == max(expected, key=expected.get)


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_a_student_writes_with_its_native_sampler(family):
    student = tiny_student(family, tokenizer=tokenizer(), dtype=torch.float64)
    model, settings = plain_copy(student), Settings(passes=2)
    for item, reply in zip(CHAINS, answer(student, WRITTEN, tries(CHAINS), settings), strict=True):
        tokens, _, stopped, forwards = naive_generate(
            model, family, reply.prompt, budget=12, passes=2, order="confidence"
        )
        assert reply.response == student.tokenizer.decode(tokens, skip_special_tokens=True)
        assert (reply.tokens, reply.forwards, reply.stopped) == (len(tokens), forwards, stopped)
        assert reply.correct == verify(reply.response, item.answer, "lab")
        assert reply.log_probs is None


def test_an_autoregressive_model_writes_greedily(teacher):
    for reply in answer(teacher, WRITTEN, tries(CHAINS), Settings(max_new_tokens=7)):
        tokens = naive_answer(teacher.model, reply.prompt, budget=7)
        assert reply.response == teacher.tokenizer.decode(tokens, skip_special_tokens=True)
        assert reply.tokens == reply.forwards == len(tokens)
        assert reply.stopped == (tokens[-1] == STOP)


def test_an_answer_of_special_tokens_alone_counts_its_tokens(teacher, monkeypatch):
    """They are not in its text; what did not end was cut by the budget."""
    monkeypatch.setattr(Teacher, "answers", lambda *given, **how: [Answer("", stopped=False), Answer("", stopped=True)])
    cut, ended = answer(teacher, WRITTEN, tries(CHAINS[:2]), Settings(max_new_tokens=7))
    assert (cut.tokens, cut.forwards, cut.stopped) == (7, 7, False)
    assert (ended.tokens, ended.forwards, ended.stopped) == (1, 1, True)


@pytest.mark.parametrize("writer", ["student", "teacher"])
def test_a_reply_without_a_verdict_says_so(teacher, monkeypatch, writer):
    model = teacher if writer == "teacher" else tiny_student(FAMILIES[0], tokenizer=tokenizer())
    lost = Judgement(False, None, judged=False)
    monkeypatch.setattr(Verifier, "judgements", lambda self, texts, *others, ids: [lost] * len(texts))
    replies = answer(model, WRITTEN, tries(CHAINS), Settings(max_new_tokens=7))
    assert [(reply.judged, reply.correct) for reply in replies] == [(False, False)] * len(CHAINS)


def test_samples_are_keyed_by_seed_item_and_number():
    """In other company, and in another order, a sample stays what it is; another number or seed is another sample."""
    student = tiny_student(FAMILIES[0], tokenizer=tokenizer(), dtype=torch.float64)
    settings = Settings(samples=3, temperature=1.0)

    def texts(asked, settings):
        replies = answer(student, WRITTEN, asked, settings)
        return {(one.item.id, one.sample): reply.response for one, reply in zip(asked, replies, strict=True)}

    asked = [Try(item, sample) for item in CHAINS for sample in range(3)]
    whole = texts(asked, settings)
    assert len(set(whole.values())) == len(whole)
    assert texts(asked[7:], settings) | texts(asked[:7], settings) == whole
    assert texts(asked[::-1], settings) == whole
    other = texts(asked, dataclasses.replace(settings, seed=1))
    assert not set(other.values()) & set(whole.values())


def test_written_choices_are_judged_by_the_letters_offered(teacher):
    benchmark = dataclasses.replace(LETTERS, protocol="generated")
    item = Item("q", "a", "E", choices=tuple("12345"))
    reply = answer(teacher, benchmark, [Try(item)], Settings(max_new_tokens=4))[0]
    assert reply.correct == verify(reply.response, "E", "choice", letters="ABCDE")


def test_letters_must_be_single_tokens():
    assert letter_ids(tokenizer(), "ABCD") == [tokenizer().get_vocab()[a] for a in "ABCD"]
    with pytest.raises(ForkLeftError, match=r"one token behind.*for B;"):
        letter_ids(tokenizer(extra='"B'), "ABCD")
    without = tokenizer()
    without.add_special_tokens({"unk_token": "<pad>"})
    with pytest.raises(ForkLeftError, match="for E;"):
        letter_ids(without, "ABCDE")
    student = tiny_student(FAMILIES[0], tokenizer=tokenizer(extra='"B'))
    with pytest.raises(ForkLeftError, match="one token behind"):
        check_protocol(student, LETTERS, CHOICES, Settings())


def test_models_of_the_wrong_kind(teacher):
    student = tiny_student(FAMILIES[0], tokenizer=tokenizer())
    with pytest.raises(ForkLeftError, match=r"Student or a Teacher.*Qwen3ForCausalLM"):
        check_protocol(teacher.model, WRITTEN, CHAINS, Settings())
    with pytest.raises(ForkLeftError, match="no tokenizer"):
        check_protocol(tiny_student(FAMILIES[0]), WRITTEN, CHAINS, Settings())
    with pytest.raises(ForkLeftError, match=r"greedily.*temperature or threshold"):
        check_protocol(teacher, WRITTEN, CHAINS, Settings(temperature=0.5, threshold=0.9))
    with pytest.raises(ForkLeftError, match=r"greedily.*knows no geometry"):
        check_protocol(teacher, LETTERS, CHOICES, Settings(geometry="canvas"))
    with pytest.raises(ForkLeftError, match="knows no decoding"):
        check_protocol(teacher, WRITTEN, CHAINS, Settings(decoding="native"))
    with pytest.raises(ForkLeftError, match="letters in an answer slot, where nothing is sampled"):
        check_protocol(student, LETTERS, CHOICES, Settings(temperature=0.5, samples=2))
    check_protocol(student, LETTERS, CHOICES, Settings(passes=2))


def test_too_long_for_the_context(teacher):
    student = tiny_student(FAMILIES[0], tokenizer=tokenizer())
    for model in (teacher, student):
        with pytest.raises(ForkLeftError, match=r"question q0.*exceed the model's context of 128"):
            answer(model, WRITTEN, tries(CHAINS), Settings(max_new_tokens=127))
        # Only the last is too long, and that is said before the first is asked.
        check_protocol(model, WRITTEN, CHAINS, Settings(max_new_tokens=117))
        with pytest.raises(ForkLeftError, match=r"question q4.*exceed the model's context of 128"):
            check_protocol(model, WRITTEN, CHAINS, Settings(max_new_tokens=118))
    long = [dataclasses.replace(CHOICES[0], question="1" * 130)]
    for model in (teacher, student):
        with pytest.raises(ForkLeftError, match=r"question q0.*exceed the model's context of 128; .* leave it out"):
            answer(model, LETTERS, tries(long), Settings())
        check_protocol(model, LETTERS, CHOICES, Settings())
        with pytest.raises(ForkLeftError, match=r"question q0.*exceed the model's context of 128"):
            check_protocol(model, LETTERS, [*CHOICES, *long], Settings())
    with pytest.raises(ForkLeftError, match=r"question q0.* context of 128; shorten .* --max-new-tokens"):
        check_protocol(student, LETTERS, CHOICES, Settings(geometry="canvas", max_new_tokens=120))
    with pytest.raises(ForkLeftError, match="a canvas of 8 tokens has no room"):
        check_protocol(student, LETTERS, CHOICES, Settings(geometry="canvas", max_new_tokens=8))


def test_a_head_that_cannot_be_read_is_refused_at_the_start():
    capped = tiny_model(seed=3)
    capped.config.final_logit_softcapping = 30.0
    model = Teacher(capped, tokenizer(), stop_ids=[STOP])
    check_protocol(model, WRITTEN, CHAINS, Settings())
    with pytest.raises(ForkLeftError, match="changes its logits behind the output head"):
        check_protocol(model, LETTERS, CHOICES, Settings())


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_letters_without_a_finite_score_are_no_answer(number):
    for model in (
        Teacher(tiny_model(seed=3), tokenizer(), stop_ids=[STOP]),
        tiny_student(FAMILIES[0], tokenizer=tokenizer()),
    ):
        # At the start all was well: the first look at the head is behind us.
        check_protocol(model, LETTERS, CHOICES, Settings())
        letter = model.tokenizer.get_vocab()["D"]
        with torch.no_grad():
            model.model.get_output_embeddings().weight[letter] = number
        with pytest.raises(ForkLeftError, match=r"question q\d: .*finite"):
            answer(model, LETTERS, tries(CHOICES[1:2]), Settings())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"samples": 0, "temperature": 1.0}, "samples must be a whole number of at least 1, found 0"),
        ({"samples": 4}, "4 times the same response"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 0.9}, "top_p 0.9 does nothing at temperature 0"),
        ({"batch_size": 0}, "batch_size"),
        ({"threshold": 1.5}, "threshold is a probability: expected 0 to 1, found 1.5"),
        ({"geometry": "round"}, "geometry must be one of truncated, canvas, found 'round'"),
    ],
)
def test_bad_settings(wrong, told):
    with pytest.raises(ForkLeftError, match=told):
        Settings(**wrong)


def test_the_prompt_is_the_chat_template_of_the_benchmark_s_messages(teacher):
    replies = answer(teacher, WRITTEN, tries(CHAINS[:2]), Settings(max_new_tokens=1))
    assert [one.prompt for one in replies] == [
        prompt_ids(teacher.tokenizer, WRITTEN.messages(item)) for item in CHAINS[:2]
    ]
