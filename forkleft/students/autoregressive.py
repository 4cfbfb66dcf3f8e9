"""Autoregressive checkpoints, loaded by Transformers itself: teachers, and GGUF files that become students."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from forkleft.errors import ForkLeftError
from forkleft.students.bundled import local_path
from forkleft.students.formats.stock import MOST
from forkleft.students.shards import (
    first_line,
    hub_unreached,
    not_reached,
    refuse_other_weights,
    refuse_other_weights_on_hub,
    shown,
)


def load_causal_lm(
    path_or_hub_id: str | Path,
    *,
    gguf_file: str | None = None,
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
    weights: bool = True,
    **settings: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal LM and its tokenizer from a folder, the hub or a GGUF file (a path to it, or its name in the folder).

    A repository of the hub is `owner/name` or, for a branch, tag or commit of it, `owner/name@revision`; `lab:NAME` is
    a model of the lab.
    weights: False does not read them, and gives a model on the meta device, which only has shapes.
    settings: for `from_pretrained`. The weights of a GGUF file are unpacked unless a `quantization_config` says
    otherwise. Raises ForkLeftError if anything is missing, if the weights are pickled, or if the repository needs its
    own code and that is not trusted.
    """
    path = local_path(path_or_hub_id)
    if path.is_file() and gguf_file is None:
        path, gguf_file = path.parent, path.name
    # Without the flag Transformers may ask on standard input whether to run code.
    common: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    source, revision = str(path), None
    if not path.is_dir():
        source, _, revision = str(path_or_hub_id).partition("@")
    if revision:
        common["revision"] = revision
    if gguf_file is None:
        if path.is_dir():
            refuse_other_weights(path)
        settings = {"use_safetensors": True, **settings}
    else:
        common["gguf_file"] = gguf_file
        settings = {"quantization_config": GgufConfig(dequantize=True), **settings}
    report: dict[str, Any] = {}
    try:
        if weights:
            # A pair, because `output_loading_info` is set; the declared type is only the model.
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source, dtype=dtype, output_loading_info=True, **common, **settings
            )
            model, report = loaded
        else:
            model = _empty_model(source, dtype, **common)
        tokenizer = AutoTokenizer.from_pretrained(source, **common)
    except Exception as error:  # from the hub, safetensors, a damaged GGUF file, an unknown class, …
        if not path.is_dir() and hub_unreached(error):
            raise not_reached(source) from error
        if gguf_file is None and not path.is_dir():
            refuse_other_weights_on_hub(source, revision or None)
        raise ForkLeftError(
            f"{source} cannot be loaded: {first_line(error)}; expected a causal LM that Transformers knows, in "
            "safetensors or, with the extra forkleft[gguf], as a GGUF file"
        ) from error
    kinds = {"missing": "missing_keys", "of another shape": "mismatched_keys", "unexpected": "unexpected_keys"}
    if wrong := {kind: sorted(map(str, report[keys])) for kind, keys in kinds.items() if report.get(keys)}:
        faults = "; ".join(f"{kind}: {shown(names)}" for kind, names in wrong.items())
        raise ForkLeftError(f"the tensors in {source} are not those of its configuration; {faults}")
    return model.eval(), tokenizer


def _empty_model(source: str, dtype: torch.dtype, *, trust_remote_code: bool, **common: Any) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, **common)
    for name, most in MOST.items():
        # None: a model without experts may have the field all the same.
        if (getattr(config, name, None) or 0) > most:
            raise ValueError(f"{name} is {getattr(config, name)}, expected at most {most}")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
    common.pop("gguf_file", None)
    # It may name more stop ids; not every checkpoint has the file.
    with suppress(OSError):
        model.generation_config = GenerationConfig.from_pretrained(source, **common)
    return model
