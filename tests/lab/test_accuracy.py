import json
from dataclasses import asdict

import pytest
import torch
from skips import slow

from forkleft.lab.accuracy import measure, print_accuracy, tally_of
from forkleft.lab.benchmarks import lab_set
from forkleft.lab.models import STUDENTS, TEACHERS, Card, LabModel, load_model
from forkleft.lab.pretrain import Pretraining, train_student
from forkleft.prompts import prompt_ids
from forkleft.rollout import generate
from forkleft.verify import verify


def in_float64(name) -> LabModel:
    """Its answers do not hang on how a near tie is rounded, so neither on the processor nor on batches."""
    loaded = load_model(name)
    loaded.model.double()
    return loaded


def asked(item) -> str:
    """A question with its options, as the user puts it."""
    return "\n".join([item.question, *(f"{a}. {text}" for a, text in zip("ABCD", item.choices, strict=True))])


# The quickest of the models on one set; the others wait for the slow tests. A student needs minutes for chain-6, which
# tells no more of its weights than chain-4.
SLOW = [
    slow(name, set_name)
    for names, set_names in ((TEACHERS, ("chain-4", "chain-6", "choice-2")), (STUDENTS, ("chain-4", "choice-2")))
    for name in names
    for set_name in set_names
    if (name, set_name) != ("teacher-weak", "chain-4")
]


@pytest.mark.parametrize(("name", "set_name"), [("teacher-weak", "chain-4"), *SLOW])
def test_accuracy_matches_the_card(name, set_name):
    loaded = in_float64(name)
    tally = tally_of(measure(loaded, lab_set(set_name)))
    # The card was measured in float32, which may turn a near tie; more than 1% of the items would be a fault.
    assert abs(tally.correct - loaded.card.accuracy[set_name].correct) <= 5


def test_batched_protocols_equal_one_question_at_a_time():
    """Padding and batching change nothing for a teacher: a loop without either gives the same answers."""
    loaded = in_float64("teacher-weak")
    model, tokenizer = loaded.model, loaded.tokenizer
    stop = set(model.generation_config.eos_token_id)
    for items in (lab_set("chain-2", 3), lab_set("chain-5", 3)):
        for item, record in zip(items.items, measure(loaded, items).records, strict=True):
            ids = tokenizer.encode(f"<|user|>{item.question}<|assistant|>", add_special_tokens=False)
            start = len(ids)
            while len(ids) - start < 64 and ids[-1] not in stop:
                ids.append(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item())
            assert record.response == tokenizer.decode(ids[start:], skip_special_tokens=True)
            assert record.tokens == record.forwards == len(ids) - start
            assert record.correct == verify(record.response, item.answer, "lab")
    for choices in (lab_set("choice-2", 4), lab_set("choice-4", 4)):
        for item, record in zip(choices.items, measure(loaded, choices).records, strict=True):
            text = f'<|user|>{asked(item)}<|assistant|>"answer": "'
            logits_V = model(input_ids=torch.tensor([tokenizer.encode(text, add_special_tokens=False)])).logits[0, -1]
            scores = {a: logits_V[tokenizer.convert_tokens_to_ids(a)].item() for a in "ABCD"}
            assert record.extracted == max(scores, key=scores.get)
            assert record.correct == (record.extracted == item.answer)


@pytest.fixture(params=["block", slow("shifted")], scope="module")
def student(request) -> LabModel:
    """A student of a few training steps: it knows little, which is enough to compare two ways of asking it."""
    recipe = Pretraining(layers=2, width=48, causal_steps=20, steps=20, lr=1e-2, warmup=5, batch=8)
    one = train_student(recipe, request.param)
    card = Card("student", 1, "", asdict(recipe), accuracy={}, family=request.param)
    return LabModel(one.model.double(), one.tokenizer, card)


def test_students_write_with_their_native_sampler(student):
    loaded = student
    items = lab_set("chain-3", 6)
    found = measure(loaded, items)
    prompts = [prompt_ids(loaded.tokenizer, [{"role": "user", "content": item.question}]) for item in items.items]
    alone = [generate(loaded.student, [prompt], order="confidence", max_new_tokens=64)[0] for prompt in prompts]
    assert [record.response for record in found.records] == [t.text for t in alone]
    assert found.summary["results"]["forwards"] == sum(t.forwards for t in alone)
    assert found.summary["results"]["tokens"] == sum(len(t.tokens) for t in alone)


@pytest.mark.parametrize("student", ["block"], indirect=True)
def test_a_student_reads_the_answer_slot_in_its_block(student):
    """By hand: prompt, prefix, and masks to the end of the 32-token block; all of the block sees itself and before."""
    loaded = student
    tokenizer = loaded.tokenizer
    items = lab_set("choice-2", 6)
    for item, record in zip(items.items, measure(loaded, items).records, strict=True):
        prompt = tokenizer.encode(f"<|user|>{asked(item)}<|assistant|>", add_special_tokens=False)
        prefix = tokenizer.encode('"answer": "', add_special_tokens=False)
        ids = prompt + prefix + [tokenizer.mask_token_id] * (32 - len(prefix))
        seen = torch.ones(len(ids), len(ids), dtype=torch.bool)
        seen[: len(prompt), len(prompt) :] = False
        logits = loaded.model(input_ids=torch.tensor([ids]), attention_mask=seen[None, None]).logits[0]
        scores = {a: logits[len(prompt) + len(prefix), tokenizer.convert_tokens_to_ids(a)].item() for a in "ABCD"}
        assert record.extracted == max(scores, key=scores.get)


def test_records_are_written_for_each_item(tmp_path, capsys):
    path = tmp_path / "records.jsonl"
    print_accuracy(["teacher-weak"], ["choice-2"], as_json=True, records=path)
    row = json.loads(capsys.readouterr().out)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(records) == len({record["id"] for record in records}) == row["total"]
    assert sum(record["correct"] for record in records) == row["correct"]
    told = {"model", "set", "id", "response", "answer", "correct", "tokens", "forwards"}
    assert all(record.keys() == told for record in records)
    right = {item.id: item.answer for item in lab_set("choice-2").items}
    assert all(record["correct"] == (record["answer"] == right[record["id"]]) for record in records)
