"""`convert`: make the start of a student from an autoregressive checkpoint.

The families differ from a stock checkpoint only in attention and mask. So a student of any family is a stock model, a
mask token, and the facts of the family. Nothing is trained here: the weights are kept, the mask token is found or
added, and the facts are written beside them. The result reads the prompt as before but has not learnt to fill in masks:
`forkleft adapt` must teach that before anything is distilled, and the facts say so.
"""

from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from forkleft.errors import ForkLeftError
from forkleft.students.autoregressive import load_causal_lm
from forkleft.students.families import named_family, with_block_size
from forkleft.students.formats import STOCK
from forkleft.students.loading import load_model, load_tokenizer, stop_ids_of
from forkleft.students.saving import refuse_taken, save_student
from forkleft.students.shards import checkpoint_folder, read_json
from forkleft.students.student import Student, embedding_rows
from forkleft.vocabulary import check_mask, resolve_stop_ids

_MASK_TOKEN = "<|mask|>"


def convert(
    source: str | Path,
    output: str | Path,
    *,
    family: str,
    mask_token: str | int | None = None,
    block_size: int | None = None,
    gguf_file: str | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write to the folder `output` a student of `family` that begins with the weights of an autoregressive `source`.

    source: a folder or hub repository with safetensors of a Llama, Qwen2, Qwen3 or Qwen3-MoE; or a GGUF file, given
        itself or as the `gguf_file` in the folder.
    mask_token: a token or its id (default: the tokenizer's mask token, else that of the family). It must be an added
        token that the chat template does not use, or a new token. An added token keeps its row of the embedding. A new
        token gets the mean of all tokens' rows, in the output head too.
    block_size: instead of the family's usual one.
    dtype: of the written weights (default: as the source stores them; float32 for a GGUF file, which is unpacked).

    Raises ForkLeftError if the source is not such a checkpoint, if the mask is an ordinary token or one that
    prompts use, or if `output` is not empty or cannot be written to.
    """
    output = Path(output).expanduser()
    refuse_taken(output)
    known = named_family(family)
    facts = known.family if block_size is None else with_block_size(known.family, block_size)
    if gguf_file is None and not Path(source).expanduser().is_file():
        model, tokenizer, stop_ids = _from_safetensors(source, dtype)
    else:
        model, tokenizer = load_causal_lm(source, gguf_file=gguf_file, dtype=dtype or torch.float32)
        stop_ids = resolve_stop_ids(tokenizer, model.generation_config, model.config)
    mask_id = _place_mask(model, tokenizer, mask_token, known.mask_token or _MASK_TOKEN)
    save_student(Student.from_model(model, facts, mask_id, stop_ids, tokenizer=tokenizer, adapted=False), output)


def _from_safetensors(
    source: str | Path, dtype: torch.dtype | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, tuple[int, ...]]:
    folder = checkpoint_folder(source)
    config = read_json(folder / "config.json")
    kind = config.get("model_type")
    if kind not in STOCK.values():
        known = ", ".join(sorted(set(STOCK.values())))
        raise ForkLeftError(f"expected an autoregressive checkpoint ({known}), found model_type {kind!r}")
    tokenizer = load_tokenizer(folder, trust_remote_code=False)
    return load_model(folder, config, dtype=dtype, device=None), tokenizer, stop_ids_of(tokenizer, folder, config)


@torch.no_grad()
def _place_mask(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, asked: str | int | None, usual: str) -> int:
    """Give the mask its token in the tokenizer and its rows in embedding and head; return its id."""
    taken = set(tokenizer.get_vocab().values())
    token = (tokenizer.mask_token or usual) if asked is None else asked
    check_mask(tokenizer, token)
    if isinstance(token, int):
        rows = embedding_rows(model)
        if not 0 <= token < rows:
            raise ForkLeftError(f"the mask id {token} is outside the model's {rows} embeddings; name a mask token")
        mask_id = token
    else:
        tokenizer.add_special_tokens({"mask_token": token})
        mask_id = tokenizer.get_vocab()[token]
    if mask_id not in taken:
        _give_mean_row(model, mask_id, sorted(taken))
    return mask_id


def _give_mean_row(model: PreTrainedModel, mask_id: int, tokens: list[int]) -> None:
    if mask_id >= embedding_rows(model):
        model.resize_token_embeddings(mask_id + 1, mean_resizing=False)
    tied = model.config.tie_word_embeddings
    for weight in [model.get_input_embeddings().weight, *([] if tied else [model.get_output_embeddings().weight])]:
        inside = [i for i in tokens if i < weight.shape[0]]
        weight[mask_id] = weight[inside].float().mean(dim=0).to(weight.dtype)
