"""A teacher in memory: any causal LM of Transformers, frozen.

Shapes: T tokens, S positions asked for, E the teacher's width, V the rows of its head.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from forkleft.devices import on_device
from forkleft.digests import fingerprint
from forkleft.errors import ForkLeftError
from forkleft.prompts import Message, Reading, prompt_ids
from forkleft.teacher.answers import Answer, Keep

# Hidden states, or a call that waits for them.
Hidden = torch.Tensor | Callable[[], torch.Tensor]
# So many batches are sorted by length together, so that each has prompts of similar length.
_BATCHES_SORTED = 8


class Teacher:
    """A frozen causal LM and its tokenizer.

    stop_ids: what ends its answers; pass the union of both models' stop ids. batch_size: sequences in one forward.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        stop_ids: Sequence[int],
        batch_size: int = 32,
    ) -> None:
        self.model, self.tokenizer = model.eval().requires_grad_(False), tokenizer
        self.stop_ids, self.batch_size = tuple(stop_ids), batch_size

    @cached_property
    def identity(self) -> str:
        """A fingerprint of model, stop ids and chat template. Other weights give another identity."""
        return fingerprint(self.model, self._marks)

    @property
    def _marks(self) -> list[str]:
        """What makes a teacher another one, beside its model."""
        template = self.tokenizer.chat_template
        return [*map(str, self.stop_ids), template if isinstance(template, str) else ""]

    @property
    def head_weight(self) -> torch.Tensor:
        """`weight_VE` of the output head."""
        return self.model.get_output_embeddings().weight

    def head_logits(self, hidden_SE: torch.Tensor) -> torch.Tensor:
        """`logits_SV`: hidden states times the output head."""
        weight_VE = self.head_weight
        if weight_VE.is_meta:
            # A device map moved the head to other memory. Accelerate fetches it when the head is called.
            return self.model.get_output_embeddings()(hidden_SE)
        return hidden_SE.to(weight_VE.device, weight_VE.dtype) @ weight_VE.T

    def place(self, device: torch.device) -> None:
        """Move the model to a device, unless it is spread over several, or quantised in a form that cannot move."""
        if not hasattr(self.model, "hf_device_map") and not getattr(self.model, "is_quantized", False):
            self.model.to(device)

    @torch.no_grad()
    def answers(
        self, conversations: Sequence[Sequence[Message]], *, max_new_tokens: int, keep: Keep | None = None
    ) -> list[Answer]:
        """A greedy answer to each conversation, in batches of prompts of similar length.

        keep: gets the number of a conversation and its answer as soon as that ends, before the batch does.
        """
        prompts = [prompt_ids(self.tokenizer, messages) for messages in conversations]
        # Sorted part by part: with all short prompts first, the estimate of the time left would be too short.
        part = _BATCHES_SORTED * self.batch_size
        parts = [range(start, min(start + part, len(prompts))) for start in range(0, len(prompts), part)]
        order = [k for numbers in parts for k in sorted(numbers, key=lambda k: len(prompts[k]))]
        found: dict[int, Answer] = {}
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]

            def ended(row: int, ids: list[int], chosen: list[int] = chosen) -> None:
                found[chosen[row]] = self._answer(ids)
                if keep is not None:
                    keep(chosen[row], found[chosen[row]])

            self._write([prompts[k] for k in chosen], max_new_tokens, ended, at_once=keep is not None)
        return [found[k] for k in range(len(prompts))]

    def _write(
        self, prompts: list[list[int]], max_new_tokens: int, ended: Callable[[int, list[int]], None], *, at_once: bool
    ) -> None:
        """Continue each prompt greedily. `ended` gets every row with its new ids.

        at_once: as soon as the row ends. Otherwise with the last of the batch, which saves a check after each token.
        """
        filler = self.stop_ids[0]
        width = max(map(len, prompts))
        ids_BT = torch.tensor([[filler] * (width - len(prompt)) + prompt for prompt in prompts])
        mask_BT = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        # All is set here: Transformers takes the rest from the checkpoint, whose defaults may sample or penalise.
        greedy = GenerationConfig(
            do_sample=False,
            num_beams=1,
            temperature=1.0,
            top_p=1.0,
            top_k=50,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(self.stop_ids),
            pad_token_id=filler,
        )
        device, going_on = self.model.device, set(range(len(prompts)))

        def look(ids_BT: torch.Tensor, scores: Any, **settings: Any) -> torch.Tensor:
            last = ids_BT[:, -1].tolist()
            for row in [row for row in going_on if last[row] in self.stop_ids]:
                going_on.remove(row)
                ended(row, ids_BT[row, width:].tolist())
            # The configuration ends a row; this function only notices it.
            return torch.zeros(len(ids_BT), dtype=torch.bool, device=ids_BT.device)

        out_BT = self.model.generate(
            ids_BT.to(device, non_blocking=True),
            attention_mask=mask_BT.to(device, non_blocking=True),
            generation_config=greedy,
            stopping_criteria=[look] if at_once else None,
        )
        for row in going_on:
            ended(row, out_BT[row, width:].tolist())

    def _answer(self, ids: list[int]) -> Answer:
        end = next((k for k, i in enumerate(ids) if i in self.stop_ids), None)
        return Answer(str(self.tokenizer.decode(ids[:end], skip_special_tokens=True)), stopped=end is not None)

    @torch.no_grad()
    def hidden(self, readings: Sequence[Reading]) -> list[torch.Tensor]:
        """`hidden_SE` for each reading: what the head turns into log t_i, t_i = p_φ(· | P, y_<i), at its positions."""
        self._check_head()
        order = sorted(range(len(readings)), key=lambda k: len(readings[k].prompt) + len(readings[k].response))
        found: dict[int, torch.Tensor] = {}
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            # t_i needs only what is before position i. The token there, and all after it, are left out.
            rows = [
                [*readings[k].prompt, *readings[k].response[: max(readings[k].positions, default=0)]] for k in chosen
            ]
            width = max(map(len, rows))
            # Padding is on the right, which causal attention never sees.
            ids_BT = torch.tensor([row + [self.stop_ids[0]] * (width - len(row)) for row in rows])
            ids_BT = ids_BT.to(self.model.device, non_blocking=True)
            hidden_BTE = self.model.base_model(input_ids=ids_BT, use_cache=False)[0]
            for k, hidden_TE in zip(chosen, hidden_BTE, strict=True):
                places = [len(readings[k].prompt) - 1 + i for i in readings[k].positions]
                found[k] = hidden_TE[on_device(places, hidden_TE.device, torch.long)]
        return [found[k] for k in range(len(readings))]

    def ask(self, readings: Sequence[Reading]) -> list[Hidden]:
        """As `hidden`, but a teacher that is elsewhere returns at once, with calls that wait for its hidden states."""
        return list(self.hidden(readings))

    def check(self, known: Sequence[Reading]) -> None:
        """Raise ForkLeftError if this teacher cannot teach. known: what a teacher that is elsewhere is tried on."""
        self._check_head()

    @property
    def context(self) -> float:
        """The longest sequence the model was made for."""
        return getattr(self.model.config, "max_position_embeddings", float("inf"))

    @property
    def reading_context(self) -> float:
        """The longest sequence on which it can be read."""
        return self.context

    def _check_head(self) -> None:
        """Refuse models that do more to their logits than multiply by the head (soft-caps, scales, biases)."""
        if self._head_is_plain:
            return
        raise ForkLeftError(
            f"{type(self.model).__name__} changes its logits behind the output head (a soft-cap, a scale or a bias), "
            "which ForkLeft's losses do not know; choose another teacher"
        )

    @property
    def _scales_logits(self) -> bool:
        # A soft-cap hardly changes small logits, so the configuration is checked as well.
        scales = (getattr(self.model.config, name, None) for name in ("final_logit_softcapping", "logit_scale"))
        return any(scale not in (None, 1.0) for scale in scales)

    @cached_property
    def _head_is_plain(self) -> bool:
        if self._scales_logits:
            return False
        ids_BT = torch.tensor([[self.stop_ids[0], self.stop_ids[0]]], device=self.model.device)
        logits_V = self.model(input_ids=ids_BT, use_cache=False).logits[0, -1].float()
        hidden_E = self.model.base_model(input_ids=ids_BT, use_cache=False)[0][0, -1]
        if not logits_V.isfinite().all():
            raise ForkLeftError(
                f"the logits of the teacher ({type(self.model).__name__}) are not finite; its weights are damaged, or "
                "overflow in this dtype: try float32 or another checkpoint"
            )
        return self._same_logits(self.head_logits(hidden_E), logits_V)

    def _same_logits(self, own: torch.Tensor, theirs: torch.Tensor) -> bool:
        own = own.float().to(theirs.device)
        return bool((own - theirs).abs().max() <= 2e-2 * theirs.abs().max())
