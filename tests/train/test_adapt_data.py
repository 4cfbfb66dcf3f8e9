import re

import pytest
from tiny import STOP, family_name, tiny_student, tiny_tokenizer

from forkleft.errors import ForkLeftError
from forkleft.objective.denoising import draw, fed_tokens
from forkleft.randomness import keyed_generator
from forkleft.students import Family
from forkleft.train import adapt_data
from forkleft.train.adapt_config import AdaptConfig
from forkleft.train.adapt_data import SampleStream, prepare_samples, to_be_answered
from forkleft.verify import Verifier

BLOCK = Family("block", 4)
QUESTION = {"question": "ab", "answer": "5", "solution": "x#5"}


def student(family=BLOCK):
    return tiny_student(family, tokenizer=tiny_tokenizer())


def config(**changes):
    usual = {"max_new_tokens": 16, "prompt_template": "{question}", "reference_template": "{solution}#{answer}"}
    return AdaptConfig("nowhere", use_cpu=True, **usual | changes)


def prepare(rows, family=BLOCK, **changes):
    return prepare_samples(student(family), rows, config(**changes))


def ids(text):
    return tiny_tokenizer().encode(text)


def chat(*contents):
    return {
        "messages": [
            {"role": "assistant" if number % 2 else "user", "content": content}
            for number, content in enumerate(contents)
        ]
    }


def test_the_three_kinds_of_rows():
    found = prepare([{"text": "abcdefgh", "id": "t"}])
    (sample,) = found.samples
    assert (found.kind, found.budget, sample.id) == ("text", None, "t")
    assert (sample.prompt, sample.response) == (ids("a"), [*ids("bcdefgh"), STOP])

    found = prepare([chat("ab", "cd", "ef", "gh")])
    (sample,) = found.samples
    assert (found.kind, found.budget, sample.id) == ("messages", 16, "0")
    # The tiny template renders contents one after the other; only the last answer is learned.
    assert (sample.prompt, sample.response) == (ids("abcdef"), [*ids("gh"), STOP])

    found = prepare([QUESTION, QUESTION | {"question": "cd", "solution": "xy"}], verifier="lab")
    assert found.kind == "questions" and [example.answer for example in found.examples] == ["5", "5"]
    # A solution that does not state its answer gets the form that is verified.
    assert [sample.response for sample in found.samples] == [[*ids("x#5"), STOP], [*ids("xy#5"), STOP]]


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ([], {}, "the data set is empty"),
        ([{"words": "ab"}], {}, "needs a column text, or messages, or question .* found words; rename"),
        ([{"text": "abcdefgh"}, chat("a", "b")], {}, "row 1: expected text as in other rows, found messages"),
        ([{"text": ["a"]}], {}, "row 0: expected text, found"),
        ([{"text": "ab"}, {"text": "cd"}], {}, "every text is shorter than a block of 4 tokens .the first has 2."),
        ([{"text": ""}, {"text": "a"}], {}, "no row of 2 can be learned from; the text of row 0 has 0 token"),
        ([{"text": "a" * 30}], {"max_length": 20}, "row 0: a text of 31 tokens does not fit into 20 .max_length"),
        ([{"text": "a" * 300}], {}, "a text of 301 tokens does not fit into 128"),
        (
            [chat("a", "b" * 16)],
            {},
            "row 0: a prompt of 1 tokens and a response of 17 do not fit into the budget of 16",
        ),
        ([chat("a" * 120, "b" * 10)], {}, "a prompt of 120 tokens and a response of 11 .* context of 128"),
        ([chat("a", "b<stop>c")], {}, "the response holds a stop token"),
        ([chat("a", "b<mask>c")], {}, "row 0: the response holds 1 id"),
        ([{"text": "abcdefgh<mask>"}], {}, "row 0: the text holds 1 id"),
        ([chat("a<mask>", "b")], {}, "row 0: the prompt contains the mask token"),
        ([chat("a", "b", "c")], {}, "no row of 1 can be learned from; the messages of row 0 do not end with an answer"),
        ([{"messages": [{"role": "user"}]}], {}, "expected messages with role and content"),
        ([{"messages": "abc"}], {}, "row 0: expected messages .*, in a list, found 'abc'; .* bad_rows: skip"),
        ([{"messages": ["a", "b"]}], {}, "row 0: expected messages .*, both text, found 'a'"),
        ([chat("a", ["b"])], {}, "row 0: expected messages .* found .*'content': .'b'"),
        ([chat(None, "b")], {}, "row 0: expected messages .* found .*'content': None"),
        ([chat("a", None)], {}, "no row of 1 can be learned from; the messages of row 0 do not end with an answer"),
        (["abc"], {}, "expected rows with columns, found 'abc'"),
        ([{"text": "abcdefgh"}, {"text": None}], {}, "row 1: expected text, found None; .* bad_rows: skip"),
        ([{"text": "abcdefgh"}, {"words": "a"}], {}, "row 1: the data set needs a column text, .* found words"),
        ([{"text": "<mask>abcdefgh"}], {}, "row 0: the prompt contains the mask token"),
        ([QUESTION | {"answer": " "}], {"verifier": "lab"}, "no row of 1 .*; the answer of row 0 is blank"),
        (
            [QUESTION | {"question": None}],
            {"verifier": "lab"},
            "row 0: expected text in question, found None; or leave",
        ),
        ([QUESTION], {}, "name the verifier"),
        ([QUESTION | {"solution": ""}], {"verifier": "lab"}, "no row of 1 can be learned from; row .* has no solution"),
    ],
)
def test_bad_rows(rows, changes, message):
    with pytest.raises(ForkLeftError, match=message):
        prepare(rows, **changes)


def test_a_tokenizer_without_a_chat_template():
    """The fault of no row: it is told as it is, even where bad rows are skipped."""
    bare = student()
    bare.tokenizer.chat_template = None
    for rule in ("refuse", "skip"):
        with pytest.raises(ForkLeftError, match=r"^the tokenizer .* has no chat template"):
            prepare_samples(bare, [chat("a", "b")], config(bad_rows=rule))
    assert prepare_samples(bare, [{"text": "abcdefgh"}], config()).samples


def test_rows_that_cannot_be_used_are_left_out_and_told(caplog):
    long, good, open_end = chat("a", "b" * 30), chat("a", "b"), chat("a")
    assert len(prepare([good, open_end, long, long], long_rows="skip").samples) == 1
    assert [record.getMessage().partition(" and a response")[0] for record in caplog.records] == [
        "left out 1 of 4 rows, which do not end with an answer of the assistant; the first: the messages of row 1 do "
        "not end with an answer of the assistant",
        "left out 2 of 4 rows, which are too long; the first: row 2: a prompt of 1 tokens",
    ]
    # A response is never cut: it would end without its stop token.
    assert len(prepare([good, long], long_rows="cut").samples) == 1
    rows = [{"text": "abcdefgh"}, {"text": "ab"}, {"text": "cd"}]
    assert len(prepare(rows).samples) == 3
    assert "2 of 3 texts are shorter than a block of 4 tokens" in caplog.text


@pytest.mark.parametrize("family", [BLOCK, Family("block", 32, "absolute"), Family("full", 4)], ids=family_name)
def test_what_fills_a_response_up_stays_within_the_context(family):
    """Context 128, budget 100: only a fully attending student sees the whole budget."""
    made, settings = student(family), config(max_new_tokens=100, long_rows="skip")
    rows = [chat("a" * length, "b" * 5) for length in (28, 29, 110, 122)]
    samples = prepare_samples(made, rows, settings).samples
    assert [len(sample.prompt) for sample in samples] == ([28] if family.attention == "full" else [28, 29, 110, 122])
    for sample in samples:
        stream = draw(made, sample, keyed_generator(0), budget=100).stream
        ends = [len(stream.ids), *(replica.start + len(replica.ids) for replica in stream.replicas)]
        assert max(ends) <= made.context
    if family.attention == "full":
        with pytest.raises(ForkLeftError, match=r"row 1: .* and the whole budget of 100 .* context of 128; raise that"):
            prepare_samples(made, rows[:2], config(max_new_tokens=100))
    # A text that is as long as the context ends within its last block.
    (sample,) = prepare_samples(made, [{"text": "a" * 127}], settings).samples
    assert fed_tokens(made, sample, None) == 128


@pytest.mark.parametrize("anchor", ["prompt_end", "absolute", "prompt_end_backward"])
def test_long_texts_are_cut_or_split_at_whole_blocks(anchor):
    family = Family("block", 4, anchor)
    text = "abcdefghijklmnopqrstuvwxyz"
    split = prepare([{"text": text}], family, max_length=11, long_rows="split").samples
    joined = [*split[0].prompt, *(token for sample in split for token in sample.response)]
    assert joined == [*ids(text), STOP]
    for sample in split[:-1]:
        length = len(sample.prompt) + len(sample.response)
        assert length <= 11 and family.segment(length - 1, 1)[1] == length
    assert [sample.id for sample in split] == [f"0/{number}" for number in range(len(split))]
    assert prepare([{"text": text}], family, max_length=11, long_rows="cut").samples == split[:1]
    assert prepare([{"text": text}], Family("full", 4), max_length=11, long_rows="cut").samples[0].response == ids(
        text[1:11]
    )


class Rows:
    def __init__(self, rows, broken=False):
        self.rows, self.broken, self.read = rows, broken, 0

    def __iter__(self):
        self.read += 1
        yield from self.rows
        if self.broken:
            raise OSError("the connection is gone")


def test_a_stream_gives_what_a_list_does_each_time():
    rows = [{"text": "abcdefgh" * (k + 1)} for k in range(5)]
    stream = SampleStream(student(), Rows(rows), config())
    for _ in range(2):
        assert list(stream) == prepare(rows).samples
    other = SampleStream(student(), Rows(rows[1:]), config())
    assert stream.digest != other.digest


LONG, STOPPED = "x" * 30 + "#5", "x<stop>#5"
IMPERFECT = {
    "questions": [
        QUESTION,
        QUESTION,
        QUESTION | {"answer": None},
        QUESTION | {"answer": " ", "id": "blank"},
        QUESTION | {"solution": None, "id": "no solution"},
        QUESTION | {"solution": "xy", "id": "unmarked"},
        QUESTION | {"solution": LONG},
        QUESTION | {"solution": STOPPED},
        QUESTION | {"question": None},
        QUESTION | {"question": "a<mask>"},
        {"messages": [{"role": "user", "content": "cd"}], "answer": "7", "solution": "z#7"},
        {"messages": [{"role": "user", "content": "cd"}], "answer": None, "solution": "z#7"},
        {"messages": "cd", "answer": "7", "solution": "z#7"},
        {"text": "abcdefgh"},
        QUESTION | {"question": "z", "id": "unmarked"},
    ],
    "messages": [
        {"text": None, "messages": None},
        chat("a", "b"),
        chat("a", "b") | {"answer": None},
        chat("a", None),
        chat("a"),
        chat("a", LONG),
        chat("a", STOPPED),
        chat("no", "b"),
        chat(None, "b"),
        {"messages": "abc"},
        {"words": "abc"},
        chat("c", "d") | {"id": 7},
    ],
    "text": [
        {"text": None},
        {"text": "abcdefgh"},
        {"text": ""},
        {"text": "a" * 60, "id": "long"},
        {"text": ["a"]},
        {"text": "abc<mask>"},
        chat("a", "b"),
        {"text": "hgfedcba"},
    ],
}
REFUSING = "{% if messages[0].content == 'no' %}{{ raise_exception('no') }}{% endif %}"


def lenient(**changes):
    return config(**{"verifier": "lab", "bad_rows": "skip", "long_rows": "split", "max_length": 40} | changes)


@pytest.mark.parametrize("together", [1, 4, 256])
@pytest.mark.parametrize("kind", IMPERFECT)
def test_a_stream_of_imperfect_rows_gives_what_a_list_does(kind, together, monkeypatch):
    monkeypatch.setattr(adapt_data, "_TOGETHER", together)
    made, rows = student(), IMPERFECT[kind]
    made.tokenizer.chat_template = REFUSING + made.tokenizer.chat_template
    expected = prepare_samples(made, rows, lenient())
    names = {"questions": ["0", "1", "unmarked", "10", "unmarked"], "messages": ["1", "2", "7"]}
    names["text"] = ["1", "long/0", "long/1", "7"]
    assert expected.kind == kind and [sample.id for sample in expected.samples] == names[kind]
    stream = SampleStream(made, Rows(rows), lenient())
    assert (stream.kind, stream.budget) == (expected.kind, expected.budget)
    for _ in range(2):
        assert list(stream) == expected.samples


@pytest.mark.parametrize("kind", IMPERFECT)
def test_rows_that_are_wrong_end_lists_and_streams_unless_they_are_skipped(kind):
    rows = IMPERFECT[kind]
    for read in (prepare_samples, lambda *given: list(SampleStream(*given))):
        data = Rows(rows) if read is not prepare_samples else rows
        with pytest.raises(ForkLeftError, match=r"^row \d+: .*; or leave such rows out with bad_rows: skip"):
            read(student(), data, lenient(bad_rows="refuse"))
        # What does not fit has a rule of its own.
        with pytest.raises(ForkLeftError, match=r"do(es)? not fit into .* say with long_rows"):
            read(student(), data, lenient(long_rows="refuse"))


def test_a_stream_tells_what_it_leaves_out_while_it_is_read(monkeypatch, caplog):
    monkeypatch.setattr(adapt_data, "_TOGETHER", 5)
    monkeypatch.setattr(adapt_data, "_LOOKED_AT", 5)
    rows = [chat("a", "b"), chat("a"), *[chat("a", "b")] * 8, *[chat("a", STOPPED), chat("a")] * 20]
    stream = iter(SampleStream(student(), Rows(rows), lenient()))
    told = "left out 1 of 5 rows that were looked at, which do not end with an answer of the assistant; the first: the"
    assert [record.getMessage()[: len(told)] for record in caplog.records] == [told]
    caplog.clear()
    assert len(list(stream)) == 9
    # Each reason at its first row and then at ten times as many, with its own first fault; the rest at the end.
    assert re.findall(r"left out (.*?), which (\w+).* row (\d+)", caplog.text) == [
        ("3 of the first 15 rows", "cannot", "10"),
        ("11 of the first 30 rows", "do", "1"),
        ("21 of 50 rows", "do", "1"),
        ("20 of 50 rows", "cannot", "10"),
    ]


def test_what_was_told_in_a_pass_is_not_told_in_the_next(caplog):
    stream = SampleStream(student(), Rows(IMPERFECT["messages"]), lenient())
    assert len(caplog.records) == 3
    for _ in range(2):
        list(stream)
    assert len(caplog.records) == 3


def test_streamed_questions_are_verified_together(monkeypatch):
    judged = []

    def judge(self, responses, answers, *, ids=None):
        judged.append(len(responses))
        return [True] * len(responses)

    monkeypatch.setattr(Verifier, "judge", judge)
    stream = SampleStream(student(), Rows([QUESTION] * 600), config(verifier="lab"))
    assert len(list(stream)) == 600 and judged == [256, 256, 256, 88]


def test_questions_that_evaluations_answer(caplog):
    """Context 128, budget 100: what leaves no room for it, or was left out itself, is not asked."""
    rows = [QUESTION | {"question": "a" * length, "id": f"q{length}"} for length in (40, 20, 28, 29, 10)]
    rows += [QUESTION | {"question": "b", "solution": solution} for solution in (None, "x" * 110)]
    settings = {"verifier": "lab", "max_new_tokens": 100, "long_rows": "skip"}
    data = prepare(rows, **settings)
    assert [example.id for example in data.examples] == ["q40", "q20", "q28", "q29", "q10"]
    caplog.clear()
    asked = to_be_answered(student(), data, config(accuracy_questions=2, **settings))
    assert [example.id for example in asked.examples] == ["q20", "q28"] and asked.samples == data.samples
    (record,) = caplog.records
    assert record.getMessage() == (
        "2 of 5 held-out questions leave no room for a response of 100 tokens (max_new_tokens) in the context of 128, "
        "and are not answered in evaluations; the first: row q40"
    )
    assert to_be_answered(student(), data, config(**settings)) == data
    with pytest.raises(ForkLeftError, match="no held-out question leaves room for a response of 120 tokens"):
        to_be_answered(student(), data, config(accuracy_questions=2, **settings | {"max_new_tokens": 120}))


def test_a_stream_that_breaks_says_where():
    with pytest.raises(ForkLeftError, match=r"the data ended early, behind row 1: the connection is gone; .* resume"):
        SampleStream(student(), Rows([{"text": "abcdefgh"}] * 2, broken=True), config())
    with pytest.raises(ForkLeftError, match="the data set is empty"):
        SampleStream(student(), Rows([]), config())
