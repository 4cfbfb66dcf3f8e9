"""The student: a stock causal LM and the facts that make it a diffusion model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from forkleft.errors import ForkLeftError
from forkleft.students.attention import ATTENTION_NAME, DENSE_ATTENTION_NAME, Layout
from forkleft.students.family import Family
from forkleft.students.reading import read_rows
from forkleft.vocabulary import Vocabulary

# A head that no cache holds (16 MB in float32), and rows that are few beside it: with 12, nothing is won.
_LARGE_HEAD, _FEW_ROWS = 2**22, 8
_SUPPORTED = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"})


@dataclass(frozen=True)
class Origin:
    """The checkpoint a student was loaded from, so that it can be saved back in the same format.

    source: as the user named it, a folder or a repository of the hub; folder: where its small files are; config: its
    `config.json` as it was read.
    """

    source: str
    folder: Path
    config: Mapping[str, Any]


class Student:
    """A diffusion language model. Make one with `load_student` or, from a model in memory, with `Student.from_model`.

    model: the stock module, trained and saved as usual; family: how it attends and is read; vocabulary: 𝒱, mask and
    stop ids; tokenizer: turns tokens into text, if there is one; origin: the checkpoint it came from, if any;
    excluded_V: which ids are outside 𝒱; adapted: False for the weights of an autoregressive model that never learned
    to denoise (`convert`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        family: Family,
        vocabulary: Vocabulary,
        tokenizer: PreTrainedTokenizerBase | None = None,
        origin: Origin | None = None,
        *,
        adapted: bool = True,
    ) -> None:
        _check_attention(model)
        rows = embedding_rows(model)
        if not 0 <= vocabulary.mask_id < rows:
            raise ForkLeftError(
                f"mask id {vocabulary.mask_id} is outside the model's {rows} embeddings; "
                "add a mask token and resize the embeddings, or name another mask token"
            )
        self.model, self.family, self.vocabulary, self.tokenizer = model, family, vocabulary, tokenizer
        self.origin, self.adapted = origin, adapted
        head = model.get_output_embeddings()
        self._excluded_ids = vocabulary.excluded(head.weight.shape[0]).nonzero().flatten()
        # Up to the last id of 𝒱. All rows of a head after it are excluded, and heads differ in how many those are.
        self.excluded_V = vocabulary.excluded(max(vocabulary.valid) + 1)
        if model.config._attn_implementation != DENSE_ATTENTION_NAME:
            model.set_attn_implementation(ATTENTION_NAME)
        read_rows(model)

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        family: Family,
        mask_id: int | None,
        stop_ids: Sequence[int],
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        origin: Origin | None = None,
        adapted: bool = True,
    ) -> "Student":
        """A student from a stock model in memory. All its ids are valid except mask and pad.

        Raises ForkLeftError if the mask id is missing or outside the embeddings, if no stop id is given, or if the
        model's attention would not follow our masks.
        """
        if mask_id is None:
            raise ForkLeftError("mask id is missing: a diffusion model needs one; name the mask token")
        ids = set(range(model.get_output_embeddings().weight.shape[0]))
        pad_id = model.config.pad_token_id
        if tokenizer is not None:
            # The rows after the last token pad the head. A vocabulary can have gaps, too.
            ids.intersection_update(tokenizer.get_vocab().values())
            pad_id = tokenizer.pad_token_id
        vocabulary = Vocabulary.of_ids(ids, mask_id, stop_ids, pad_id=pad_id)
        return cls(model, family, vocabulary, tokenizer, origin, adapted=adapted)

    def but(self, **changes: Any) -> "Student":
        """The same model with some of its facts changed, by the names of the constructor."""
        facts = ("family", "vocabulary", "tokenizer", "origin", "adapted")
        return Student(self.model, **{name: getattr(self, name) for name in facts} | changes)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.model.device

    @property
    def dense_attention(self) -> bool:
        """Whether FlexAttention is switched off."""
        return self.model.config._attn_implementation == DENSE_ATTENTION_NAME

    def use_dense_attention(self, dense: bool = True) -> None:
        """Switch FlexAttention off on a GPU, or on again. Elsewhere it is never used, and this changes nothing."""
        self.model.set_attn_implementation(DENSE_ATTENTION_NAME if dense else ATTENTION_NAME)

    @property
    def text_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, where text is read or written. Raises ForkLeftError if the student has none."""
        if self.tokenizer is None:
            raise ForkLeftError("the student has no tokenizer, which turns text into tokens and back; load it with one")
        return self.tokenizer

    @property
    def context(self) -> int:
        """The longest sequence the model was made for."""
        return self.model.config.max_position_embeddings

    @property
    def head_weight(self) -> torch.Tensor:
        """`weight_VD` of the output head, for losses that project rows themselves."""
        head = self.model.get_output_embeddings()
        plain = isinstance(head, torch.nn.Linear) and head.bias is None and head.weight.is_floating_point()
        if not plain or head.weight.shape != (head.out_features, head.in_features):
            raise ForkLeftError(
                f"expected the output head to be a plain linear layer without bias, whole and in floating point, found "
                f"{type(head).__name__}; leave the head out of adapters and quantisation, and in the root group of FSDP"
            )
        return head.weight

    def hidden(
        self, ids_N: torch.Tensor, positions_N: torch.Tensor, layout: Layout, rows_S: torch.Tensor
    ) -> torch.Tensor:
        """`hidden_SD`: one native forward over the N tokens of a layout, and the last hidden states of S of them."""
        if self.model.config._attn_implementation not in (ATTENTION_NAME, DENSE_ATTENTION_NAME):
            raise ForkLeftError(
                f"the model's attention was changed to {self.model.config._attn_implementation!r}, which does not "
                f"follow ForkLeft's masks; leave it at {ATTENTION_NAME!r}"
            )
        out = self.model.base_model(
            input_ids=ids_N[None],
            position_ids=positions_N[None],
            # Transformers does not change a 4-D mask. This one is never read: the layout decides.
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids_N.device),
            use_cache=False,
            forkleft_layout=layout,
            forkleft_rows=rows_S,
        )
        return out.last_hidden_state[0]

    def logits(self, hidden_SD: torch.Tensor) -> torch.Tensor:
        """`logits_SV` over the output head, at least float32, −inf outside 𝒱."""
        logits_SV = _projected(self.model.get_output_embeddings(), hidden_SD)
        logits_SV = logits_SV.to(torch.promote_types(logits_SV.dtype, torch.float32))
        # Few columns are excluded: filling them is cheaper than masking the whole vocabulary.
        self._excluded_ids = self._excluded_ids.to(logits_SV.device, non_blocking=True)
        return logits_SV.index_fill_(-1, self._excluded_ids, float("-inf"))

    def check_prompt(self, prompt: Sequence[int], new_tokens: int, what: str) -> None:
        """Raise ForkLeftError naming `what` if the prompt is empty, holds the mask, or leaves no room to answer."""
        if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not all(isinstance(i, int) for i in prompt):
            raise ForkLeftError(f"{what}: expected a list of token ids, found {prompt!r:.60}; encode the text first")
        if not prompt:
            raise ForkLeftError(f"{what}: the prompt is empty; a question needs at least one token")
        if self.vocabulary.mask_id in prompt:
            raise ForkLeftError(
                f"{what}: the prompt contains the mask token (id {self.vocabulary.mask_id}), which the student would "
                "take for a position to fill; remove it"
            )
        if max(prompt) >= embedding_rows(self.model) or min(prompt) < 0:
            raise ForkLeftError(
                f"{what}: prompt id {max(prompt)} or {min(prompt)} is outside the model's embeddings; "
                "was the prompt encoded with another tokenizer?"
            )
        if len(prompt) + new_tokens > self.context:
            raise ForkLeftError(
                f"{what}: a prompt of {len(prompt)} tokens and a response of up to {new_tokens} exceed the model's "
                f"context of {self.context}; shorten the prompt, or the response budget with "
                "--max-new-tokens (in Python and in recipes max_new_tokens)"
            )


def _projected(head: torch.nn.Module, hidden_SD: torch.Tensor) -> torch.Tensor:
    """The head's product, by the head itself unless it is a plain one on a CPU that is much larger than the rows.

    Such a product takes as long as it takes to read the head, and with its factors exchanged half of that. Hooks on the
    head are not called then; nothing of ours sets any there.
    """
    plain = type(head) is torch.nn.Linear and head.bias is None and type(head.weight) is torch.nn.Parameter
    if not plain or head.weight.device.type != "cpu" or head.weight.dtype not in (torch.float32, torch.float64):
        return head(hidden_SD)
    if len(hidden_SD) > _FEW_ROWS or head.weight.numel() < _LARGE_HEAD:
        return head(hidden_SD)
    return torch.mm(head.weight, hidden_SD.T).T.contiguous()


def embedding_rows(model: PreTrainedModel) -> int:
    """How many ids have a row in the model's input embeddings."""
    # Any class that has this count: adapters and quantisation replace the stock class by their own.
    embeddings: Any = model.get_input_embeddings()
    return embeddings.num_embeddings


def _check_attention(model: PreTrainedModel) -> None:
    """Refuse models whose attention would ignore or misread the masks.

    Many classes add something of their own (sinks, soft-caps, scaled logits, another kind of cache) that a general
    check would miss. So only the classes that the oracles of the tests cover are accepted.
    """
    names = {base.__name__ for base in type(model).__mro__}
    if not names & _SUPPORTED:
        raise ForkLeftError(
            f"{type(model).__name__} is not among the classes whose attention is known to follow ForkLeft's masks: "
            f"{', '.join(sorted(_SUPPORTED))}; load the checkpoint into one of them"
        )
    kinds = set(getattr(model.config, "layer_types", None) or []) - {"full_attention"}
    if kinds or getattr(model.config, "use_sliding_window", False):
        raise ForkLeftError(
            f"{type(model).__name__} has layers with {', '.join(sorted(kinds)) or 'a sliding window'}, which see less "
            "than a diffusion model's masks allow; only full-attention layers are supported"
        )
