"""How often the lab's models are right on the held-out sets.

    forkleft lab accuracy

Two protocols, as for the real benchmarks: on `chain-*` the model writes its answer, greedily; on `choice-*` the offered
letters are compared by their likelihood in the answer slot after the assistant prefix `"answer": "`.
"""

import json
from collections.abc import Iterator, Sequence

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from forkleft.lab.models import LabModel, Tally, load_model
from forkleft.lab.questions import LETTERS, Question, held_out
from forkleft.verify import verify

ACCURACY_SETS = ("chain-3", "chain-4", "chain-5", "choice-2")
ANSWER_PREFIX = '"answer": "'
# Six steps of eight characters, the marked answer and the stop token, and some room to go wrong in.
MAX_NEW_TOKENS = 64


def print_accuracy(models: Sequence[str], sets: Sequence[str], *, as_json: bool = False) -> None:
    """Measure shipped models on held-out sets and print a table, or a JSON object for each model and set.

    Every name is checked before anything is measured; ForkLeftError names what exists.
    """
    items = {name: held_out(name) for name in sets}
    loaded = {name: load_model(name) for name in models}
    console = Console()
    if as_json:
        for lab_model, set_name, tally in _measured(loaded, items, console):
            low, high = tally.interval
            fields = {"model": lab_model.card.name, "set": set_name, "protocol": protocol_of(items[set_name])}
            fields |= {"correct": tally.correct, "total": tally.total, "accuracy": tally.accuracy}
            print(json.dumps(fields | {"interval": [low, high], "card": lab_model.card.accuracy[set_name].accuracy}))
        return
    table = Table(title="Accuracy on held-out questions", caption="95% Wilson interval; card: when training ended")
    for column in ("model", "set", "protocol"):
        table.add_column(column)
    for column in ("correct", "accuracy", "interval", "card"):
        table.add_column(column, justify="right")
    previous = None
    for lab_model, set_name, tally in _measured(loaded, items, console):
        name = lab_model.card.name
        if previous not in (None, name):
            table.add_section()
        low, high = tally.interval
        table.add_row(
            name if name != previous else "",
            set_name,
            protocol_of(items[set_name]),
            f"{tally.correct} / {tally.total}",
            f"{tally.accuracy:.1%}",
            f"{low:.1%} – {high:.1%}",
            f"{lab_model.card.accuracy[set_name].accuracy:.1%}",
        )
        previous = name
    console.print(table)


def _measured(
    loaded: dict[str, LabModel], items: dict[str, list[Question]], console: Console
) -> Iterator[tuple[LabModel, str, Tally]]:
    for name, lab_model in loaded.items():
        for set_name, questions in items.items():
            with console.status(f"{name} on {set_name}"):
                tally = measure(lab_model.model, lab_model.tokenizer, questions)
            yield lab_model, set_name, tally


def protocol_of(items: list[Question]) -> str:
    """How a set is measured: `generated` answers, or likelihood in the answer `slot`."""
    return "generated" if items[0].choices is None else "slot"


def measure(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, items: list[Question]) -> Tally:
    """The model's right answers on a set of questions, under the set's protocol."""
    if protocol_of(items) == "generated":
        responses = greedy_responses(model, tokenizer, items)
        verdicts = [verify(text, item.answer, "lab") for text, item in zip(responses, items, strict=True)]
    else:
        letters = slot_letters(model, tokenizer, items)
        verdicts = [letter == item.answer for letter, item in zip(letters, items, strict=True)]
    return Tally(sum(verdicts), len(verdicts))


@torch.inference_mode()
def greedy_responses(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, items: list[Question]) -> list[str]:
    """What an autoregressive model writes to each question."""
    batch = _prompts(tokenizer, items)
    ids_BT = model.generate(**batch, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
    return tokenizer.batch_decode(ids_BT[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


@torch.inference_mode()
def slot_letters(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, items: list[Question]) -> list[str]:
    """The letter an autoregressive model finds most likely in the answer slot of each question."""
    batch = _prompts(tokenizer, items, assistant_prefix=ANSWER_PREFIX)
    logits_BV = model(**batch, logits_to_keep=1).logits[:, -1]
    letter_ids = tokenizer.convert_tokens_to_ids(list(LETTERS))
    return [LETTERS[place] for place in logits_BV[:, letter_ids].argmax(dim=-1).tolist()]


def _prompts(tokenizer: PreTrainedTokenizerFast, items: list[Question], assistant_prefix: str = "") -> dict:
    """Left-padded `input_ids` and `attention_mask` of the questions through the chat template."""
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": item.prompt}], add_generation_prompt=True, tokenize=False
        )
        + assistant_prefix
        for item in items
    ]
    batch = tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}
