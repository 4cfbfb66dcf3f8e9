"""`load_teacher`: any causal LM of Transformers, from a folder, the hub or a GGUF file, ready to teach a student.

In memory, or on a server; then only its output head is read.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from forkleft.errors import DiffusionError, ForkLeftError
from forkleft.prompts import read_template
from forkleft.students.autoregressive import load_causal_lm
from forkleft.students.bundled import local_path
from forkleft.students.families import is_diffusion
from forkleft.students.loading import read_sidecar
from forkleft.students.student import Student
from forkleft.teacher.ending import read_ending
from forkleft.teacher.local import Teacher
from forkleft.teacher.remote import RemoteTeacher, StateServer
from forkleft.vocabulary import common_vocabulary, resolve_stop_ids

_LOG = logging.getLogger(__name__)
_SHOWN = 8


def load_teacher(
    path_or_hub_id: str | Path,
    *,
    student: Student | None = None,
    gguf_file: str | None = None,
    chat_template: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device | None = None,
    batch_size: int = 32,
    trust_remote_code: bool = False,
    weights: bool = True,
    server: StateServer | None = None,
    **settings: Any,
) -> Teacher:
    """Load a causal LM (dense, mixture of experts, GGUF) as a frozen teacher.

    path_or_hub_id: a folder, a GGUF file, a repository of the hub (`owner/name` or `owner/name@revision`), `lab:NAME`.
    student: which it will teach. Both must share a tokenizer, except for special tokens. What they share is logged, and
        the teacher's answers end at the stop ids of both.
    gguf_file: the name of a GGUF file in the folder or repository; not needed if the path is that of the file itself.
    chat_template: a Jinja file, or the template itself, for a tokenizer that has none or instead of its own.
    dtype, device: of the parameters (default: float32, where Transformers puts them).
    batch_size: sequences in one forward.
    trust_remote_code: run the repository's own code if its class is not in Transformers.
    weights: False neither reads nor downloads them, and gives a teacher on the meta device, to check prompts with.
    server: where its layers run. Then the weights are not read, except the output head and the final norm, out of its
        safetensors; dtype: that of the head, and of what the server sends. The result is a `RemoteTeacher`.
    settings: for `from_pretrained`, such as `device_map` or `quantization_config`.

    Raises ForkLeftError if it cannot be loaded whole, if it is a diffusion model, or if student and teacher cut text
    differently.
    """
    _refuse_diffusion(path_or_hub_id)
    if server is not None and (gguf_file is not None or str(path_or_hub_id).endswith(".gguf")):
        raise ForkLeftError(
            f"{path_or_hub_id} is a GGUF file: the output head of a teacher on a server is read out of safetensors; "
            "name the checkpoint that the server was started with, in that format"
        )
    # First, so that a missing file is reported before a large model is loaded.
    template = None if chat_template is None else read_template(chat_template)
    model, tokenizer = load_causal_lm(
        path_or_hub_id,
        gguf_file=gguf_file,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        weights=weights and server is None,
        **settings,
    )
    if template is not None:
        tokenizer.chat_template = template
    stop_ids = resolve_stop_ids(tokenizer, model.generation_config, model.config)
    if student is not None:
        stop_ids, summary = _agreed_stop_ids(student, model, tokenizer, stop_ids)
        if weights:
            _LOG.info(summary)
    if server is None:
        teacher = Teacher(model, tokenizer, stop_ids=stop_ids, batch_size=batch_size)
    else:
        ending = read_ending(path_or_hub_id, model, dtype)
        teacher = RemoteTeacher(model, tokenizer, stop_ids=stop_ids, server=server, ending=ending)
    if device is not None:
        teacher.place(torch.device(device))
    return teacher


def _refuse_diffusion(path_or_hub_id: str | Path) -> None:
    folder = local_path(path_or_hub_id)
    if folder.is_dir():
        noted, source, revision = read_sidecar(folder) is not None, str(folder), None
    else:
        noted, (source, _, revision) = False, str(path_or_hub_id).partition("@")
    try:
        config, _ = PretrainedConfig.get_config_dict(source, revision=revision or None)
    except (OSError, ValueError):  # a GGUF file, or nothing at all: loading will report it
        config = {}
    if noted or is_diffusion(config):
        raise DiffusionError(
            f"{path_or_hub_id} is a diffusion model, which does not write from left to right: expected an "
            "autoregressive one"
        )


def _agreed_stop_ids(
    student: Student, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, own: Sequence[int]
) -> tuple[tuple[int, ...], str]:
    """Check that the tokenizers agree; return the stop ids of both, and a sentence about what they share."""
    if student.tokenizer is None:
        raise ForkLeftError("the student has no tokenizer to compare with the teacher's; load it with one")
    ours, theirs = ({i: token for token, i in table.get_vocab().items()} for table in (student.tokenizer, tokenizer))
    # An id that means something else to the teacher does not end its answers.
    stop_ids = tuple(dict.fromkeys([*own, *(i for i in student.vocabulary.stop_ids if theirs.get(i) == ours.get(i))]))
    shared = common_vocabulary(
        student.tokenizer,
        tokenizer,
        student_rows=student.model.get_output_embeddings().weight.shape[0],
        teacher_rows=model.get_output_embeddings().weight.shape[0],
        mask_id=student.vocabulary.mask_id,
        stop_ids=stop_ids,
    )
    apart = [table[i] for table in (ours, theirs) for i in sorted(table) if ours.get(i) != theirs.get(i)]
    more = f" and {len(apart) - _SHOWN} more" if len(apart) > _SHOWN else ""
    ends = ", ".join(f"{theirs.get(i)!r} ({i})" for i in stop_ids)
    summary = (
        f"student and teacher share {len(shared.valid)} token ids; tokens of only one of them: "
        f"{', '.join(map(repr, apart[:_SHOWN])) or 'none'}{more}; answers end at {ends}"
    )
    return stop_ids, summary
