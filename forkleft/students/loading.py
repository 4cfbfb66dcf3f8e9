"""`load_student`: a checkpoint of any known family as a stock model with the facts that make it a diffusion model.

    load_student("JetLM/SDAR-1.7B-Chat")
    load_student("divelab/Qwen3-4B-a2d-init", family="bd3lm")
    load_student("runs/student")                                # a folder that save_student or convert wrote

`config.json` is read as JSON, the stock class is built from it, and every tensor must find its place. A model's own
code is never run; a tokenizer's only if it cannot be read otherwise and the user says `trust_remote_code=True`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from forkleft.errors import ForkLeftError
from forkleft.students.families import FamilyRecord, named_family, recognise, with_block_size
from forkleft.students.family import Family
from forkleft.students.formats import head_and_embedding, is_computed, stock_class, stock_config, tensor_views
from forkleft.students.shards import checkpoint_folder, first_line, read_json, read_tensors
from forkleft.students.student import Origin, Student
from forkleft.vocabulary import resolve_mask_id, resolve_stop_ids

SIDECAR = "forkleft_student.json"
# The tokens with which the known chat templates end a turn.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>")
_FACTS = ("attention", "block_size", "anchor", "head")


@dataclass(frozen=True)
class Sidecar:
    """What ForkLeft writes beside a student's `config.json`, so that nothing has to be said when it is loaded."""

    family: Family
    mask_id: int
    stop_ids: tuple[int, ...]


def load_student(
    path_or_hub_id: str | Path,
    *,
    family: str | Family | None = None,
    block_size: int | None = None,
    mask_token: str | int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
) -> Student:
    """Load a student from a folder, or from a repository of the Hugging Face hub.

    family: a name of `families.RECORDS`, or the facts themselves; by default what the folder's own sidecar says, else
        what its `config.json` tells.
    block_size, mask_token (a token or an id): where the checkpoint's own, or the family's usual, are not wanted.
    dtype, device: of the parameters (default: float32 on the CPU).
    trust_remote_code: let a tokenizer without `tokenizer.json`, or `vocab.json` and `merges.txt`, run its own code.

    Raises ForkLeftError if the family is unknown, ambiguous or an autoregressive one, if the mask token is not known
    (naming candidates), and if files are missing, damaged, pickled, or disagree with `config.json`.
    """
    folder = checkpoint_folder(path_or_hub_id)
    config = read_json(folder / "config.json")
    sidecar = read_sidecar(folder)
    record = None
    if isinstance(family, str):
        record = named_family(family)
    elif family is None and sidecar is None:
        record = recognise(config)
    facts = _facts(record, family if isinstance(family, Family) else None, sidecar, config, block_size)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    if mask_token is None and sidecar is not None:
        mask_token = sidecar.mask_id
    mask_id = mask_id_of(tokenizer, config, record, mask_token)
    stop_ids = stop_ids_of(tokenizer, folder, config) if sidecar is None else sidecar.stop_ids
    model = load_model(folder, config, dtype=dtype, device=device)
    origin = Origin(folder.resolve(), config)
    return Student.from_model(model, facts, mask_id, stop_ids, tokenizer=tokenizer, origin=origin)


def load_model(
    folder: Path, config: Mapping[str, Any], *, dtype: torch.dtype, device: str | torch.device | None
) -> PreTrainedModel:
    """The stock model of a checkpoint folder whose `config.json` is `config`, in evaluation mode."""
    stock = stock_config(config)
    with torch.device("meta"):
        model = stock_class(stock)(stock).to(dtype)
    model.to_empty(device=device or "cpu")
    # Computed, not stored: moving from the meta device left its numbers undefined.
    model.model.rotary_emb = type(model.model.rotary_emb)(stock).to(device or "cpu")
    model.tie_weights()
    tied, kind = stock.tie_word_embeddings, config["model_type"]
    views = tensor_views(dict(model.named_parameters()), kind, tied=tied)
    head, embedding = head_and_embedding(kind)
    read_tensors(folder, views, copies={head: embedding} if tied else {}, passed_over=is_computed)
    return model.eval()


def load_tokenizer(folder: Path, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint folder, read from its data files.

    All known families have a `tokenizer.json` or the `vocab.json` and `merges.txt` of Qwen's tokenizer, whatever class
    of their own they name. Others need their own code, which runs only with `trust_remote_code`.
    """
    if (folder / "tokenizer.json").is_file():
        reader: Any = PreTrainedTokenizerFast
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        reader = Qwen2Tokenizer
    else:
        reader = _own_tokenizer(folder, trust_remote_code)
    try:
        return reader.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare exceptions
        raise ForkLeftError(f"the tokenizer in {folder} cannot be read: {first_line(error)}") from error


def mask_id_of(
    tokenizer: PreTrainedTokenizerBase,
    config: Mapping[str, Any],
    record: FamilyRecord | None,
    mask_token: str | int | None,
) -> int:
    """The mask id: as the user says, else as tokenizer or configuration say, else by the family's own mask token.

    Raises ForkLeftError naming candidates if none of them says.
    """
    named = SimpleNamespace(mask_token_id=config.get("mask_token_id"))
    silent = mask_token is None and tokenizer.mask_token_id is None and named.mask_token_id is None
    if silent and record is not None and record.mask_token is not None:
        if record.adds_mask and record.mask_token not in tokenizer.get_vocab():
            tokenizer.add_special_tokens({"mask_token": record.mask_token})
        if record.mask_token in tokenizer.get_vocab():
            mask_token = record.mask_token
    return resolve_mask_id(tokenizer, named, mask_token)


def stop_ids_of(tokenizer: PreTrainedTokenizerBase, folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """What ends a response: the chat template's end of a turn, then what tokenizer and generation configuration list.

    The end of a turn comes first because references are ended with the first.
    """
    path = folder / "generation_config.json"
    listed = SimpleNamespace(**(read_json(path) if path.is_file() else {"eos_token_id": config.get("eos_token_id")}))
    known, template = tokenizer.get_vocab(), str(tokenizer.chat_template or "")
    turns = [known[token] for token in _TURN_ENDS if token in known and token in template]
    if turns and tokenizer.eos_token_id is None and getattr(listed, "eos_token_id", None) is None:
        return tuple(turns)
    return tuple(dict.fromkeys([*turns, *resolve_stop_ids(tokenizer, listed)]))


def read_sidecar(folder: Path) -> Sidecar | None:
    """What ForkLeft noted in a folder that it wrote; None in others."""
    path = folder / SIDECAR
    if not path.is_file():
        return None
    fields = read_json(path)
    try:
        facts = {name: fields[name] for name in _FACTS}
        family = Family(**facts, sub_block=fields.get("sub_block"), name=fields["family"])
        return Sidecar(family, int(fields["mask_id"]), tuple(int(i) for i in fields["stop_ids"]))
    except (KeyError, TypeError) as error:
        raise ForkLeftError(f"{path} is damaged ({error!r}); remove it and name the family instead") from error


def write_sidecar(folder: Path, student: Student) -> None:
    """Note a student's facts beside its `config.json`."""
    facts = asdict(student.family)
    fields = {"family": facts.pop("name"), **facts}
    fields |= {"mask_id": student.vocabulary.mask_id, "stop_ids": list(student.vocabulary.stop_ids)}
    (folder / SIDECAR).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def _facts(
    record: FamilyRecord | None,
    given: Family | None,
    sidecar: Sidecar | None,
    config: Mapping[str, Any],
    block_size: int | None,
) -> Family:
    """The family as the user gives it, or of the record that he names or that was recognised, or of the sidecar."""
    if given is not None:
        family = given
    elif record is None:
        family = sidecar.family
    else:
        family = record.family
        if block_size is None and record.block_size_field is not None:
            block_size = config.get(record.block_size_field)
    return family if block_size is None else with_block_size(family, block_size)


def _own_tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    path = folder / "tokenizer_config.json"
    own = (read_json(path) if path.is_file() else {}).get("auto_map", {}).get("AutoTokenizer")
    if own is None:
        raise ForkLeftError(f"{folder} has no tokenizer: expected tokenizer.json, or vocab.json and merges.txt")
    if not trust_remote_code:
        raise ForkLeftError(
            f"the tokenizer in {folder} has neither tokenizer.json nor vocab.json and merges.txt, so it needs its own "
            f"code ({own}); read that, and if you trust it say trust_remote_code=True"
        )
    name = next(one for one in ([own] if isinstance(own, str) else own) if one)
    return get_class_from_dynamic_module(name, folder)
