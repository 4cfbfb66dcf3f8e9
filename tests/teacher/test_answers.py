import json

import pytest

from forkleft.teacher.answers import Answer, AnswerCache, answer_key, cached_answers


class Counting:
    """Answers with its count of questions, so that every asking shows."""

    identity = "counting"

    def __init__(self):
        self.asked = []

    def answers(self, conversations, *, max_new_tokens, keep):
        for number, messages in enumerate(conversations):
            self.asked.append(messages)
            keep(number, Answer(f"{messages[0]['content']} in {max_new_tokens}", True))


def conversation(text):
    return [{"role": "user", "content": text}]


def test_asked_once_and_kept_over_runs(tmp_path):
    path, teacher = tmp_path / "deep" / "answers.jsonl", Counting()
    texts = ["one", "two", "one", "drei ü"]
    for _ in range(2):
        found = cached_answers(teacher, AnswerCache(path), [conversation(t) for t in texts], max_new_tokens=5)
        assert [answer.text for answer in found] == [f"{t} in 5" for t in texts]
    assert teacher.asked == [conversation(t) for t in ("one", "two", "drei ü")]
    cached_answers(teacher, AnswerCache(path), [conversation("one")], max_new_tokens=6)
    assert len(teacher.asked) == 4


def test_every_answer_is_kept_at_once_and_counted(tmp_path):
    """Broken off at the third question, two answers are on disk, and are not asked for again."""
    path, counted = tmp_path / "answers.jsonl", []
    asked = [conversation(text) for text in ("one", "two", "one", "three", "four")]

    class Failing(Counting):
        def answers(self, conversations, *, max_new_tokens, keep):
            super().answers(conversations[:2], max_new_tokens=max_new_tokens, keep=keep)
            assert len(path.read_text().splitlines()) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_answers(Failing(), AnswerCache(path), asked, max_new_tokens=5, found=counted.append)
    assert counted == [2, 1]
    teacher = Counting()
    cached_answers(teacher, AnswerCache(path), asked, max_new_tokens=5, found=counted.append)
    assert teacher.asked == [conversation("three"), conversation("four")]
    assert counted == [2, 1, 1, 1]


def test_the_key_knows_teacher_messages_and_budget():
    keys = {
        answer_key("a", conversation("x"), 5),
        answer_key("b", conversation("x"), 5),
        answer_key("a", conversation("y"), 5),
        answer_key("a", conversation("x"), 6),
        answer_key("a", [{"role": "system", "content": "s"}, *conversation("x")], 5),
    }
    assert len(keys) == 5


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_line_is_asked_for_again_and_nothing_else(tmp_path, cut):
    path, teacher = tmp_path / "answers.jsonl", Counting()
    cached_answers(teacher, AnswerCache(path), [conversation(t) for t in ("one", "two")], max_new_tokens=5)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    teacher.asked.clear()
    found = cached_answers(teacher, AnswerCache(path), [conversation(t) for t in ("two", "one")], max_new_tokens=5)
    assert [answer.text for answer in found] == ["two in 5", "one in 5"]
    assert teacher.asked == [conversation("two")]
    assert len(AnswerCache(path)) == 2


def test_a_damaged_record_is_never_trusted(tmp_path):
    path, teacher = tmp_path / "answers.jsonl", Counting()
    cached_answers(teacher, AnswerCache(path), [conversation(t) for t in ("one", "two")], max_new_tokens=5)
    first, second = path.read_text().splitlines()
    record = json.loads(first)
    for damaged in (first.replace("one in", "six in"), "null", "[]", '{"sum": 1}', json.dumps(record | {"more": 1})):
        path.write_text(f"{damaged}\n{second}\n")
        cache = AnswerCache(path)
        assert len(cache) == 1
        assert cache.get(record["key"]) is None


def test_keys_and_lines_stay_what_they_were(tmp_path):
    """Else the answers on users' disks would be asked for again."""
    key = answer_key("teacher", [{"role": "user", "content": "1+1?"}], 64)
    assert key == "ddb09374eafc6fd386c8e06785670e7e7f3356d447e74c6645dafebbc17b574d"
    AnswerCache(tmp_path / "cache").put({"k": Answer("zwölf", True)})
    line = b'{"key": "k", "text": "zw\\u00f6lf", "stopped": true, "sum": "fa3c5769dd5c8f70"}\n'
    assert (tmp_path / "cache").read_bytes() == line
