import pytest
import torch

from forkleft.lab.accuracy import ACCURACY_SETS, greedy_responses, measure, slot_letters
from forkleft.lab.models import TEACHERS, load_model
from forkleft.lab.questions import held_out
from forkleft.verify import verify


@pytest.mark.parametrize("name", TEACHERS)
def test_accuracy_matches_the_card(name):
    loaded = load_model(name)
    for set_name in ACCURACY_SETS:
        tally = measure(loaded.model, loaded.tokenizer, held_out(set_name))
        # Rounding differs between processors and may turn a near tie; more than two items in 500 would be a fault.
        assert abs(tally.correct - loaded.card.accuracy[set_name].correct) <= 2


def test_batched_protocols_equal_one_question_at_a_time():
    """Padding and batching change nothing: a loop without either gives the same answers."""
    loaded = load_model("teacher-weak")
    model, tokenizer = loaded.model, loaded.tokenizer
    stop = set(model.generation_config.eos_token_id)
    items = held_out("chain-2", 3) + held_out("chain-5", 3)
    for item, written in zip(items, greedy_responses(model, tokenizer, items), strict=True):
        ids = tokenizer.encode(f"<|user|>{item.prompt}<|assistant|>", add_special_tokens=False)
        start = len(ids)
        while len(ids) - start < 64 and ids[-1] not in stop:
            ids.append(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item())
        assert written == tokenizer.decode(ids[start:], skip_special_tokens=True)
    choices = held_out("choice-2", 4) + held_out("choice-4", 4)
    for item, letter in zip(choices, slot_letters(model, tokenizer, choices), strict=True):
        text = f'<|user|>{item.prompt}<|assistant|>"answer": "'
        ids = tokenizer.encode(text, add_special_tokens=False)
        logits_V = model(input_ids=torch.tensor([ids])).logits[0, -1]
        scores = {a: logits_V[tokenizer.convert_tokens_to_ids(a)].item() for a in "ABCD"}
        assert letter == max(scores, key=scores.get)


def test_measure_counts_right_answers():
    loaded = load_model("teacher-weak")
    items = held_out("chain-3", 40)
    written = greedy_responses(loaded.model, loaded.tokenizer, items)
    right = sum(verify(text, item.answer, "lab") for text, item in zip(written, items, strict=True))
    tally = measure(loaded.model, loaded.tokenizer, items)
    assert (tally.correct, tally.total) == (right, 40)
