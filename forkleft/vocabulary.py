"""Which token ids the two models may use in common, and which end a response (the paper's valid vocabulary 𝒱).

All distributions of the method are normalised over 𝒱: ids whose token string is the same in both tokenizers, without
the mask token, without the padded rows at the end of an output head, and without the pad token unless it stops a
response. Prompts are not restricted: each model renders them with its own chat template.

Shapes: V rows of an output head.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from forkleft.errors import ForkLeftError

# Two tokenizers with the same tokens can still cut text differently (other merges, another pre-tokenizer).
_ORDINARY_TEXT = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many in May.",
    "Let $x = \\frac{3}{4}$; then $x^2 + 1 = \\boxed{\\frac{25}{16}}$.\n\n",
    "a=7;b=a+5;c=b-a;c?  \n\tdef f(x):\n        return x * 2  # twice",
    "下面是一个数学问题，请逐步推理。 Qu'est-ce que c'est ? Ünïcödé 12345.678",
)
# The tokens with which the known chat templates end a turn.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>")
_SHOWN = 5


@dataclass(frozen=True)
class Vocabulary:
    """The valid vocabulary 𝒱 and the ids with a meaning of their own."""

    valid: frozenset[int]
    mask_id: int
    stop_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.mask_id in self.stop_ids:
            raise ForkLeftError(f"the mask id {self.mask_id} cannot also end a response; stop ids: {self.stop_ids}")
        if not self.valid.intersection(self.stop_ids):
            raise ForkLeftError(
                f"no response could end: expected a stop id within the vocabulary, found {list(self.stop_ids)}; "
                "name the tokens that end a response"
            )

    @classmethod
    def of_ids(
        cls, ids: Iterable[int], mask_id: int, stop_ids: Sequence[int], *, pad_id: int | None = None
    ) -> "Vocabulary":
        """The vocabulary of a model on its own: the ids that have a token, less mask and pad."""
        valid = set(ids) - {mask_id}
        if pad_id not in stop_ids:
            valid.discard(pad_id)
        return cls(frozenset(valid), mask_id, tuple(stop_ids))

    @property
    def end_id(self) -> int:
        """The stop id with which a response ends that a student is to learn: the first one within 𝒱."""
        return next(i for i in self.stop_ids if i in self.valid)

    def excluded(self, rows: int) -> torch.Tensor:
        """`excluded_V`: which of the `rows` logits of an output head are outside 𝒱 and must become −inf."""
        excluded_V = torch.ones(rows, dtype=torch.bool)
        excluded_V[[i for i in self.valid if i < rows]] = False
        return excluded_V

    def check(self, ids: Iterable[int], what: str, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Raise ForkLeftError naming the ids of `what` (a response, a reference) that are not valid."""
        if bad := sorted({i for i in ids if i not in self.valid}):
            shown = ", ".join(_named(i, tokenizer) for i in bad[:_SHOWN])
            raise ForkLeftError(
                f"{what} holds {len(bad)} id(s) outside the vocabulary that student and teacher share: {shown}; "
                "remove these tokens from the text, or use a teacher with the student's tokenizer"
            )


def common_vocabulary(
    student: PreTrainedTokenizerBase,
    teacher: PreTrainedTokenizerBase,
    *,
    student_rows: int,
    teacher_rows: int,
    mask_id: int,
    stop_ids: Sequence[int],
) -> Vocabulary:
    """𝒱 for a student and a teacher.

    `*_rows` are the rows of their output heads, which may be padded. Special and added tokens may differ: they are left
    out. Raises ForkLeftError, naming the first tokens, if the
    tokenizers give one id to two ordinary tokens or cut ordinary text differently.
    """
    ours, theirs = _strings(student), _strings(teacher)
    added = set(student.added_tokens_decoder) | set(teacher.added_tokens_decoder)
    shared = {i for i, token in ours.items() if theirs.get(i) == token}
    if differing := sorted((ours.keys() | theirs.keys()) - shared - added):
        shown = ", ".join(f"{i}: {ours.get(i)!r} / {theirs.get(i)!r}" for i in differing[:_SHOWN])
        raise ForkLeftError(
            f"student and teacher must share a tokenizer, but {len(differing)} ordinary tokens differ "
            f"(id: student / teacher): {shown}; choose a teacher of the student's model family"
        )
    for text in _ORDINARY_TEXT:
        student_ids, teacher_ids = (
            tokenizer.encode(text, add_special_tokens=False) for tokenizer in (student, teacher)
        )
        if student_ids != teacher_ids:
            pairs = enumerate(zip(student_ids, teacher_ids, strict=False))
            place = next((k for k, (a, b) in pairs if a != b), min(len(student_ids), len(teacher_ids)))
            raise ForkLeftError(
                f"student and teacher share token ids but cut text differently: {text!r} becomes … "
                f"{student.convert_ids_to_tokens(student_ids[place : place + _SHOWN])} for the student and … "
                f"{teacher.convert_ids_to_tokens(teacher_ids[place : place + _SHOWN])} for the teacher; "
                "choose a teacher of the student's model family"
            )
    valid = {i for i in shared if i < min(student_rows, teacher_rows)} - {mask_id}
    for tokenizer in (student, teacher):
        if tokenizer.pad_token_id not in stop_ids:
            valid.discard(tokenizer.pad_token_id)
    return Vocabulary(frozenset(valid), mask_id, tuple(stop_ids))


def resolve_mask_id(tokenizer: PreTrainedTokenizerBase, config: Any = None, mask_token: str | int | None = None) -> int:
    """The mask id: `mask_token` (a token or id) if given, else the tokenizer's, else the configuration's.

    It never guesses. Raises ForkLeftError, naming candidates, if neither names a mask, if they disagree, or if
    `mask_token` cannot be a mask (`check_mask`).
    """
    if mask_token is not None:
        if isinstance(mask_token, str) and mask_token not in tokenizer.get_vocab():
            raise ForkLeftError(f"the tokenizer has no token {mask_token!r}; {_mask_candidates(tokenizer)}")
        check_mask(tokenizer, mask_token)
        return mask_token if isinstance(mask_token, int) else tokenizer.get_vocab()[mask_token]
    said = {
        "the tokenizer's mask_token": tokenizer.mask_token_id,
        "the configuration's mask_token_id": getattr(config, "mask_token_id", None),
    }
    found = {name: i for name, i in said.items() if i is not None}
    if not found:
        raise ForkLeftError(f"neither tokenizer nor configuration names a mask token; {_mask_candidates(tokenizer)}")
    for name, i in found.items():
        if not _is_id(i):
            raise ForkLeftError(f"{name} must be a token id, found {i!r}; correct it, or say mask_token")
    if len(set(found.values())) > 1:
        found_ids = " but ".join(f"{name} is {_named(i, tokenizer)}" for name, i in found.items())
        raise ForkLeftError(f"{found_ids}; say which one to use with mask_token")
    return next(iter(found.values()))


def check_mask(tokenizer: PreTrainedTokenizerBase, mask_token: str | int) -> None:
    """Raise ForkLeftError, naming candidates, if a token or id that the user chose cannot be the mask.

    An ordinary token as the mask would be missing from every text. A token that prompts hold would be filled in there.
    So a mask must be an added, special or unused token, must not be in the chat template, and must not begin or end
    texts.
    """
    i: int | None
    if isinstance(mask_token, int):
        i, token = mask_token, _strings(tokenizer).get(mask_token)
        if token is None:
            return
    else:
        i, token = tokenizer.get_vocab().get(mask_token), mask_token
    if reason := _unfit(tokenizer, token, i):
        others = (tokenizer.pad_token, tokenizer.unk_token)
        fit = [(j, other) for j, other in _added(tokenizer) if other not in others and not _unfit(tokenizer, other, j)]
        fit.sort(key=lambda name: "mask" not in name[1].lower())
        named = ", ".join(f"{other!r} ({j})" for j, other in fit[:_SHOWN]) or "none of the tokens there are"
        raise ForkLeftError(
            f"{token!r}{'' if i is None else f' (id {i})'} cannot be the mask: {reason}; expected an added token that "
            f"prompts do not use, or an unused id; candidates: {named}"
        )


def resolve_stop_ids(
    tokenizer: PreTrainedTokenizerBase, generation_config: Any = None, config: Any = None
) -> tuple[int, ...]:
    """The ids that end a response, in order: the end of a turn, the tokenizer's EOS, and what the configurations list.

    The end of a turn is that of the tokenizer's chat template. It comes first, because references end with the first
    stop id. `config`, the model's, is used only if the generation configuration lists nothing. Raises ForkLeftError if
    there is no stop id at all.
    """
    known, template = tokenizer.get_vocab(), str(tokenizer.chat_template or "")
    stop_ids = [known[token] for token in _TURN_ENDS if token in known and token in template]
    if tokenizer.eos_token_id is not None:
        stop_ids.append(tokenizer.eos_token_id)
    for place in (generation_config, config):
        listed = getattr(place, "eos_token_id", None)
        if listed is not None:
            listed = listed if isinstance(listed, (list, tuple)) else [listed]
            if wrong := [i for i in listed if not _is_id(i)]:
                raise ForkLeftError(
                    f"eos_token_id must be a token id or a list of them, found {wrong[0]!r}; correct it"
                )
            stop_ids += listed
            break
    if not stop_ids:
        raise ForkLeftError("neither tokenizer nor generation configuration names an EOS token; list the stop ids")
    return tuple(dict.fromkeys(stop_ids))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _added(tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, str]]:
    return sorted((i, str(token)) for i, token in tokenizer.added_tokens_decoder.items())


def _unfit(tokenizer: PreTrainedTokenizerBase, token: str, i: int | None) -> str | None:
    """Why a token (with its id, if it has one) cannot be the mask; None if it can."""
    if i is not None and i not in tokenizer.added_tokens_decoder and i not in tokenizer.all_special_ids:
        return "it is an ordinary token"
    if token in str(tokenizer.chat_template or ""):
        return "it stands in the chat template, so that every prompt may hold it"
    if token == tokenizer.bos_token:
        return "it begins texts"
    return "it ends texts" if token == tokenizer.eos_token else None


def _strings(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {i: token for token, i in tokenizer.get_vocab().items()}


def _named(i: int, tokenizer: PreTrainedTokenizerBase | None) -> str:
    token = tokenizer.convert_ids_to_tokens(i) if tokenizer is not None and 0 <= i < len(tokenizer) else None
    return str(i) if token is None else f"{i} ({token!r})"


def _mask_candidates(tokenizer: PreTrainedTokenizerBase) -> str:
    added = tokenizer.added_tokens_decoder
    # A mask token is usually an added token, so pieces of ordinary words come last.
    names = sorted(
        ((i, token) for token, i in tokenizer.get_vocab().items() if "mask" in token.lower() and not token.isalpha()),
        key=lambda name: (name[0] not in added, name),
    )
    if not names:
        return "no token of it looks like one; name it with mask_token"
    return f"name it with mask_token; candidates: {', '.join(f'{token!r} ({i})' for i, token in names[:_SHOWN])}"
