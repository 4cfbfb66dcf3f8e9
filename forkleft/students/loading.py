"""`load_student`: load a checkpoint of any known family as a stock model, with the facts of a diffusion model.

    load_student("JetLM/SDAR-1.7B-Chat")
    load_student("divelab/Qwen3-4B-a2d-init@main", family="bd3lm")
    load_student("runs/student")                                # a folder that train, convert or save_student wrote
    load_student("lab:student-block")                           # a model of the lab
    load_student("nvidia/Efficient-DLM-4B", chat_template="recipes/templates/efficient-dlm.jinja")

`config.json` is read as JSON, the stock class is built from it, and every tensor must have a place in it. A model's own
code is never run. A tokenizer's own code is run only if there is no other way to read the tokenizer, and the user says
`trust_remote_code=True`.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from forkleft.errors import ForkLeftError
from forkleft.files import write_json
from forkleft.manifests import MANIFEST, fault
from forkleft.prompts import read_template
from forkleft.students.adapters import adapters_and_base, add_adapters
from forkleft.students.families import KnownFamily, named_family, recognise, with_block_size
from forkleft.students.family import Family
from forkleft.students.formats import (
    head_and_embedding,
    is_computed,
    stock_class,
    stock_config,
    tensor_views,
    unread_fields,
)
from forkleft.students.shards import checkpoint_folder, find_tensors, first_line, read_json, read_tensors, stored_dtype
from forkleft.students.student import Origin, Student
from forkleft.vocabulary import resolve_mask_id, resolve_stop_ids

_LOG = logging.getLogger(__name__)

SIDECAR = "forkleft_student.json"
# Of the files of a checkpoint, those that loading reads.
_READ, _UNREAD = (".safetensors", ".json", ".jinja", ".txt", ".model"), ("trainer_state.json", "forkleft.json")
_FACTS = ("attention", "block_size", "anchor", "head")


@dataclass(frozen=True)
class Sidecar:
    """What ForkLeft writes beside a student's `config.json`, so that loading it needs no options."""

    family: Family
    mask_id: int
    stop_ids: tuple[int, ...]
    adapted: bool = True


def load_student(
    path_or_hub_id: str | Path,
    *,
    family: str | Family | None = None,
    block_size: int | None = None,
    mask_token: str | int | None = None,
    chat_template: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
    dense_attention: bool = False,
    weights: bool = True,
) -> Student:
    """Load a student: a folder, a repository of the Hugging Face hub (`owner/name`, `owner/name@revision`), `lab:NAME`.

    A folder may hold only adapters (`lora_rank` in a recipe). Then the base that they name is loaded, and they are
    added into its weights: the result is a whole model, in the wanted precision.

    family: a name of `families.KNOWN_FAMILIES`, or the facts themselves; by default what the folder's own sidecar says,
        else what its `config.json` shows.
    block_size, mask_token (a token or an id): instead of the checkpoint's own, or the family's usual. A mask is an
        added or an unused token that the chat template does not use.
    chat_template: a Jinja file, or the template itself, for a tokenizer that has none or instead of its own. The stop
        ids follow it, and it is saved with the student.
    dtype, device: of the parameters (default: float32 on the CPU).
    trust_remote_code: let a tokenizer without `tokenizer.json`, or `vocab.json` and `merges.txt`, run its own code.
    dense_attention: on a GPU, attend without FlexAttention (`docs/models.md`).
    weights: False neither reads nor downloads them, and gives a student on the meta device, to check prompts with.

    Raises ForkLeftError if the family is unknown or ambiguous, if the model is autoregressive, if the mask token is not
    known (naming candidates), if files are missing, damaged, pickled, or disagree with `config.json` or with the
    manifest of a training, and if the base of adapters is not found.
    """
    adapters, base = adapters_and_base(checkpoint_folder(path_or_hub_id, weights=weights), weights=weights)
    config = read_json(base / "config.json")
    # The sidecar and tokenizer of adapters are beside them. Adapters from other tools may have neither.
    folders = [*reversed(adapters), base]
    sidecar = next(filter(None, map(read_sidecar, folders)), None)
    said: KnownFamily | Family
    if isinstance(family, str):
        said = named_family(family)
    elif family is not None:
        said = family
    else:
        said = recognise(config) if sidecar is None else sidecar.family
    known = said if isinstance(said, KnownFamily) else None
    speaking = next((place for place in folders if any(place.glob("tokenizer*.json"))), base)
    # The template is set before anything reads the tokenizer: mask and stop ids depend on it.
    tokenizer = load_tokenizer(speaking, chat_template=chat_template, trust_remote_code=trust_remote_code)
    if mask_token is None and sidecar is not None:
        mask_id = sidecar.mask_id
    else:
        mask_id = mask_id_of(tokenizer, config, known, mask_token)
    stop_ids = () if sidecar is None else sidecar.stop_ids
    if sidecar is None or chat_template is not None:
        stop_ids = tuple(dict.fromkeys([*stop_ids_of(tokenizer, base, config), *stop_ids]))
    if weights:
        for place in folders:
            _check_manifest(place)
        model = load_model(base, config, dtype=dtype, device=device)
        for adapter in adapters:
            add_adapters(model, adapter)
    else:
        # Transformers declares `to` as if it also took the model; so below.
        model = _empty_model(config).to(dtype)  # type: ignore[arg-type]
    origin = Origin(_lasting_name(path_or_hub_id), base.resolve(), config)
    student = Student.from_model(
        model,
        facts_of(said, config, block_size),
        mask_id,
        stop_ids,
        tokenizer=tokenizer,
        origin=origin,
        adapted=sidecar is None or sidecar.adapted,
    )
    student.use_dense_attention(dense_attention)
    return student


def load_model(
    folder: Path, config: Mapping[str, Any], *, dtype: torch.dtype | None, device: str | torch.device | None
) -> PreTrainedModel:
    """The stock model of a checkpoint folder whose `config.json` is `config`, in evaluation mode.

    dtype: None for that of the checkpoint. Fields of `config.json` that ForkLeft does not know are logged.
    """
    model = _empty_model(config)
    if unread := unread_fields(config):
        _LOG.info("fields of config.json that are not looked at: %s", ", ".join(unread))
    stock, kind = model.config, config["model_type"]
    tied = stock.tie_word_embeddings
    head, embedding = head_and_embedding(kind)
    # Before memory is allocated: the sizes in config.json may be absurd.
    views = tensor_views(dict(model.named_parameters()), kind, tied=tied)
    where = find_tensors(folder, views, copies={head: embedding} if tied else {}, passed_over=is_computed)
    model.to(dtype or stored_dtype(where)).to_empty(device=device or "cpu")  # type: ignore[arg-type]
    # These numbers are computed, not stored: after the meta device they are undefined.
    model.model.rotary_emb = type(model.model.rotary_emb)(stock).to(device or "cpu")
    model.tie_weights()
    read_tensors(where, tensor_views(dict(model.named_parameters()), kind, tied=tied))
    return model.eval()


def _empty_model(config: Mapping[str, Any]) -> PreTrainedModel:
    """The stock model of a `config.json` on the meta device, which only has shapes."""
    stock = stock_config(config)
    with torch.device("meta"):
        return stock_class(stock)(stock).eval()


def load_tokenizer(
    folder: Path, *, chat_template: str | Path | None = None, trust_remote_code: bool
) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint folder, read from its data files, with the user's chat template if there is one.

    All known families have a `tokenizer.json`, or the `vocab.json` and `merges.txt` of Qwen's tokenizer, even if they
    name a class of their own. Other tokenizers need their own code, which runs only with `trust_remote_code`.
    """
    if (folder / "tokenizer.json").is_file():
        reader: Any = PreTrainedTokenizerFast
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        reader = Qwen2Tokenizer
    else:
        reader = _own_tokenizer(folder, trust_remote_code)
    try:
        tokenizer = reader.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare exceptions
        raise ForkLeftError(f"the tokenizer in {folder} cannot be read: {first_line(error)}") from error
    if chat_template is not None:
        tokenizer.chat_template = read_template(chat_template)
    return tokenizer


def mask_id_of(
    tokenizer: PreTrainedTokenizerBase,
    config: Mapping[str, Any],
    known: KnownFamily | None,
    mask_token: str | int | None,
) -> int:
    """The mask id: the user's, else that of tokenizer or configuration, else that of the family's usual mask token.

    Raises ForkLeftError, naming candidates, if none of them gives one.
    """
    named = SimpleNamespace(mask_token_id=config.get("mask_token_id"))
    silent = mask_token is None and tokenizer.mask_token_id is None and named.mask_token_id is None
    if silent and known is not None and known.mask_token is not None:
        if known.adds_mask and known.mask_token not in tokenizer.get_vocab():
            tokenizer.add_special_tokens({"mask_token": known.mask_token})
        if known.mask_token in tokenizer.get_vocab():
            mask_token = known.mask_token
    return resolve_mask_id(tokenizer, named, mask_token)


def stop_ids_of(tokenizer: PreTrainedTokenizerBase, folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """The stop ids of a checkpoint folder whose `config.json` is `config` (`vocabulary.resolve_stop_ids`)."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    return resolve_stop_ids(tokenizer, SimpleNamespace(**generation), SimpleNamespace(**config))


def read_sidecar(folder: Path) -> Sidecar | None:
    """The sidecar in a folder; None in a folder without one."""
    path = folder / SIDECAR
    if not path.is_file():
        return None
    fields = read_json(path)
    try:
        facts = {name: fields[name] for name in _FACTS}
        family = Family(**facts, sub_block=fields.get("sub_block"), name=fields["family"])
        mask_id, stop_ids = fields["mask_id"], fields["stop_ids"]
    except KeyError as error:
        raise _damaged(path, f"it lacks {error.args[0]}") from error
    except ForkLeftError as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(mask_id, int):
        raise _damaged(path, f"mask_id must be a token id, found {mask_id!r}")
    if not isinstance(stop_ids, list) or not all(isinstance(i, int) for i in stop_ids):
        raise _damaged(path, f"stop_ids must be a list of token ids, found {stop_ids!r}")
    return Sidecar(family, mask_id, tuple(stop_ids), fields.get("adapted", True))


def _check_manifest(folder: Path) -> None:
    """Raise ForkLeftError if a folder that a training wrote is not as its manifest says. Reads the weights once."""
    # Other tools write files of this name, too; what a training wrote has a sidecar.
    if not (folder / MANIFEST).is_file() or not (folder / SIDECAR).is_file():
        return
    # What resuming needs, which takes twice as much room, is not read here and may have been removed.
    if (reason := fault(folder, counts=lambda name: name.endswith(_READ) and name not in _UNREAD)) is not None:
        raise ForkLeftError(
            f"{folder} is not as it was saved: {reason}; copy it again, or load another checkpoint. If you changed it "
            f"yourself, remove {folder / MANIFEST}"
        )


def _lasting_name(path_or_hub_id: str | Path) -> str:
    """A name by which a checkpoint is found from any working folder."""
    path = Path(path_or_hub_id).expanduser()
    return str(path.absolute()) if path.is_dir() else str(path_or_hub_id)


def _damaged(path: Path, why: str) -> ForkLeftError:
    return ForkLeftError(f"{path} is damaged ({why}); remove it and name the family instead")


def write_sidecar(folder: Path, student: Student) -> None:
    """Write a student's facts beside its `config.json`."""
    facts = asdict(student.family)
    fields = {"family": facts.pop("name"), **facts}
    fields |= {"mask_id": student.vocabulary.mask_id, "stop_ids": list(student.vocabulary.stop_ids)}
    # Said only of what `convert` wrote: every other student can denoise.
    fields |= {} if student.adapted else {"adapted": False}
    write_json(folder / SIDECAR, fields)


def facts_of(said: KnownFamily | Family, config: Mapping[str, Any], block_size: int | None) -> Family:
    """The facts of a family, with the block size that the user wants, or that the checkpoint of a known family has."""
    family = said.family if isinstance(said, KnownFamily) else said
    if isinstance(said, KnownFamily) and block_size is None and said.block_size_field is not None:
        block_size = config.get(said.block_size_field)
        if block_size is not None and (not isinstance(block_size, int) or block_size < 1):
            raise ForkLeftError(
                f"config.json has {said.block_size_field} = {block_size!r}, expected a whole number above 0; say "
                "the right one with block_size"
            )
    return family if block_size is None else with_block_size(family, block_size)


def _own_tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    path = folder / "tokenizer_config.json"
    classes = read_json(path).get("auto_map") if path.is_file() else None
    own = classes.get("AutoTokenizer") if isinstance(classes, dict) else None
    # One class, or a pair of a slow and a fast class, of which either may be null.
    name = next((entry for entry in (own if isinstance(own, list) else [own]) if isinstance(entry, str)), None)
    if name is None:
        raise ForkLeftError(f"{folder} has no tokenizer: expected tokenizer.json, or vocab.json and merges.txt")
    if not trust_remote_code:
        raise ForkLeftError(
            f"the tokenizer in {folder} has neither tokenizer.json nor vocab.json and merges.txt, so it needs its own "
            f"code ({own}); read that, and if you trust it say trust_remote_code=True (--trust-remote-code)"
        )
    return get_class_from_dynamic_module(name, folder)
