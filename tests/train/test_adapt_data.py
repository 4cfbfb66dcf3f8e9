import pytest
from tiny import STOP, tiny_student, tiny_tokenizer

from forkleft.errors import ForkLeftError
from forkleft.students import Family
from forkleft.train.adapt_config import AdaptConfig
from forkleft.train.adapt_data import SampleStream, prepare_samples

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
        ([{"text": "abcdefgh"}, chat("a", "b")], {}, "row 1: expected text as in the rows before it, found messages"),
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
        ([QUESTION], {}, "name the verifier"),
        ([QUESTION | {"solution": ""}], {"verifier": "lab"}, "no row of 1 can be learned from; row .* has no solution"),
    ],
)
def test_bad_rows(rows, changes, message):
    with pytest.raises(ForkLeftError, match=message):
        prepare(rows, **changes)


def test_a_tokenizer_without_a_chat_template():
    bare = student()
    bare.tokenizer.chat_template = None
    with pytest.raises(ForkLeftError, match="has no chat template"):
        prepare_samples(bare, [chat("a", "b")], config())
    assert prepare_samples(bare, [{"text": "abcdefgh"}], config()).samples


def test_rows_that_cannot_be_used_are_left_out_and_told(caplog):
    long, good = chat("a", "b" * 30), chat("a", "b")
    assert len(prepare([good, long, long], long_rows="skip").samples) == 1
    assert "left out 2 of 3 rows, which are too long; the first: row 1: a prompt of 1 tokens" in caplog.text
    # A response is never cut: it would end without its stop token.
    assert len(prepare([good, long], long_rows="cut").samples) == 1
    rows = [{"text": "abcdefgh"}, {"text": "ab"}, {"text": "cd"}]
    assert len(prepare(rows).samples) == 3
    assert "2 of 3 texts are shorter than a block of 4 tokens" in caplog.text


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
    questions = Rows([QUESTION, QUESTION])
    found = list(SampleStream(student(), questions, config(verifier="lab")))
    assert [sample.id for sample in found] == ["0", "1"] and found[0].response == found[1].response


def test_a_stream_that_breaks_says_where():
    with pytest.raises(ForkLeftError, match=r"the data ended early, behind row 1: the connection is gone; .* resume"):
        SampleStream(student(), Rows([{"text": "abcdefgh"}] * 2, broken=True), config())
    with pytest.raises(ForkLeftError, match="the data set is empty"):
        SampleStream(student(), Rows([]), config())
