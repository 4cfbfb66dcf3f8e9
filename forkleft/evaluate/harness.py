"""ForkLeft's students in lm-evaluation-harness: its own command line and tasks, with a model called `forkleft`.

    forkleft lm-eval --model_args pretrained=lab:student-block --tasks gsm8k --apply_chat_template --batch_size 16

`main` registers the model and hands over to `lm_eval`, which knows no models but its own. A task asks for two things:

- `generate_until`: the student writes until a stop id or the budget, as the model argument `decoding` says; the text is
  cut before the first `until` string. A diffusion student writes whole blocks, so an `until` string shortens the text,
  not the work.
- `loglikelihood` (multiple choice): log p(continuation | context) is read with one masked slot for each token,

      log p(y | P) = Σ_i log s_i(y_i),   s_i = p_θ(· | P, y_<i)  (paper eq. `left`),

  target and suffix hidden, the prefix and one mask query, native attention. A continuation of one token, such as an
  answer letter, is one masked slot; for longer ones the sum is the exact chain rule of the left-to-right view that
  ForkLeft trains, not a bound on the likelihood of the order in which the student itself would write. A continuation is
  "greedy" if every token is the likeliest of its slot. As everywhere in lm_eval, spaces at the end of the
  context are scored with the continuation, and the response (and its first block) begins where the context ends.

`loglikelihood_rolling` is refused. One process evaluates; `lm_eval`'s own seed, cache and log options work as usual.

Shapes: S slots of a batch of readings, T slots with the tokens asked for in them, V words, D the width.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from datasets.exceptions import DatasetsError
from tqdm import tqdm

from forkleft.devices import on_device
from forkleft.errors import ForkLeftError, check_choice
from forkleft.objective.readouts import prefix_hidden
from forkleft.prompts import Message, Reading
from forkleft.rollout import decode, decoding_of
from forkleft.students import Student, load_student
from forkleft.students.shards import first_line

MODEL_NAME = "forkleft"

_DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
# lm_eval's own default. The figures of tasks that name no budget depend on it.
_MAX_NEW_TOKENS = 256
# The device that lm_eval asks for if the user names none; its own models then look for another.
_UNSAID_DEVICE = "cuda:0"
# How lm_eval's own error begins.
_NO_TASK = "Tasks not found"
# Batches between two signs of progress: finished rows make room for waiting ones in all but the last.
_BATCHES_AT_ONCE = 8
# Rows of the output head in memory: 40 MB at 152k words.
_HEAD_ROWS = 64
# lm_eval makes the model from strings, so what `main` was given cannot be an argument of the class.
_CHAT_TEMPLATE: ContextVar[str | None] = ContextVar("chat_template", default=None)


def main(arguments: Sequence[str], *, chat_template: str | None = None) -> int:
    """Run `lm_eval`'s command line with these arguments and the model `forkleft`; return its exit code.

    chat_template: used if `model_args` name none. The model is `forkleft` unless `--model` or a `--config` file says
    otherwise: lm_eval's default, `hf`, would run a diffusion student as if it were autoregressive.

    Raises ForkLeftError if lm_eval is not installed, does not know a task or cannot get its data, and for requests that
    the model refuses.
    """
    try:
        from lm_eval.__main__ import cli_evaluate
        from lm_eval.api.registry import register_model

        register_model(MODEL_NAME)(model_class())
    except ImportError as error:
        raise ForkLeftError(
            f"lm-evaluation-harness cannot be imported ({error}); install it with: pip install 'forkleft[lm-eval]'"
        ) from error
    outer, token = sys.argv, _CHAT_TEMPLATE.set(chat_template)
    sys.argv = ["forkleft lm-eval", *_with_model(arguments)]
    try:
        cli_evaluate()
    except SystemExit as leaving:
        return int(leaving.code or 0)
    except (OSError, DatasetsError) as error:
        raise ForkLeftError(
            f"lm_eval cannot read or write what it needs: {first_line(error)}; a task's data is downloaded when it is "
            "first used: is the hub within reach, and does the data set exist?"
        ) from error
    except ValueError as error:
        if not str(error).startswith(_NO_TASK):
            raise
        raise ForkLeftError(f"lm_eval: {error}; `forkleft lm-eval ls tasks` lists all") from error
    finally:
        sys.argv = outer
        _CHAT_TEMPLATE.reset(token)
    return 0


@cache
def model_class() -> type:
    """The class that lm_eval makes its model of; needs lm_eval. Instances can be given to `lm_eval.simple_evaluate`."""
    from lm_eval.api.model import TemplateLM

    return type("ForkLeftLM", (_StudentLM, TemplateLM), {"__doc__": _StudentLM.__doc__})


def _with_model(arguments: Sequence[str]) -> list[str]:
    run = list(arguments[:1]) if arguments[:1] == ["run"] else []
    options = list(arguments[len(run) :])
    configured = any(option.startswith(("--config", "-C")) and not option.startswith("--confirm") for option in options)
    # A lone word or option asks for help, and other commands than `run` take no model.
    if len(arguments) < 2 or not options[0].startswith("-") or configured:
        return list(arguments)
    # In front, so that the user's own --model wins.
    return [*run, "--model", MODEL_NAME, *options]


class _StudentLM:
    """A student as a model of lm_eval, used with its `TemplateLM`, which cuts texts into context and continuation.

    pretrained: a folder, a repository of the hub, or lab:NAME.
    family, block_size, mask_token, chat_template, trust_remote_code, dense_attention: as for `load_student`.
    device, dtype: default a GPU in bfloat16 if there is one, else the CPU in float32.
    decoding: `static` or `native` (`forkleft.rollout.decoding`); passes, threshold: replace those of the decoding.
    max_new_tokens: the response budget of tasks that set none with `max_gen_toks`.
    batch_size: rows that are written, or contexts that are read, at a time.
    """

    # Of `TemplateLM`: lm_eval caches answers with it.
    cache_hook: Any

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        family: str | None = None,
        block_size: int | None = None,
        mask_token: str | int | None = None,
        chat_template: str | None = None,
        trust_remote_code: bool = False,
        dense_attention: bool = False,
        device: str | None = None,
        dtype: str | None = None,
        decoding: str = "static",
        passes: int | None = None,
        threshold: float | None = None,
        max_new_tokens: int = _MAX_NEW_TOKENS,
        batch_size: int | str = 1,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            known = [*(_StudentLM.__init__.__kwdefaults__ or ())]
            raise ForkLeftError(
                f"the model {MODEL_NAME} has no argument {', '.join(unknown)}; there are pretrained, {', '.join(known)}"
            )
        if pretrained is None:
            raise ForkLeftError("expected the student as --model_args pretrained=FOLDER (or lab:NAME), found none")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = dtype or ("bfloat16" if device.startswith("cuda") else "float32")
        check_choice("dtype", dtype, _DTYPES)
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise ForkLeftError(
                f"batch_size must be a whole number of at least 1, found {batch_size!r}; none is searched for"
            )
        self.student = load_student(
            str(pretrained),
            family=family,
            block_size=block_size,
            mask_token=mask_token,
            chat_template=chat_template or _CHAT_TEMPLATE.get(),
            dtype=_DTYPES[dtype],
            device=device,
            trust_remote_code=trust_remote_code,
            dense_attention=dense_attention,
        )
        self._device = self.student.device
        self.tokenizer = self.student.text_tokenizer
        self.max_new_tokens, self.batch_size = max_new_tokens, int(batch_size)
        self.decoding_name = decoding
        self.decoding = decoding_of(self.student.family, decoding, passes=passes, threshold=threshold)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Any:
        """Called by lm_eval. `model_args` (arg_dict) win over the rest of the command line (additional_config)."""
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if given.get("device") == _UNSAID_DEVICE and not torch.cuda.is_available():
            del given["device"]
        return cls(**given | arg_dict)

    @property
    def eot_token_id(self) -> int:
        """Stands in for an empty context."""
        return self.student.vocabulary.stop_ids[0]

    @property
    def tokenizer_name(self) -> str:
        """Part of the name of lm_eval's request caches."""
        return self.tokenizer.name_or_path.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """Called by lm_eval, which notes it in its results: how the student writes."""
        return {"decoding": self.decoding_name, **asdict(self.decoding)}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The ids of a text, with the tokenizer's own BOS unless a chat template has written it."""
        if add_special_tokens is None:
            bos = self.tokenizer.bos_token
            add_special_tokens = bos is None or not string.startswith(bos)
        return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def apply_chat_template(self, chat_history: list[Message], add_generation_prompt: bool = True) -> str:
        """A conversation as text, thinking off; without generation prompt its last turn is left open."""
        if self.tokenizer.chat_template is None:
            raise ForkLeftError(
                f"the tokenizer {self.tokenizer.name_or_path!r} has no chat template; give it one with "
                "--chat-template, or leave out --apply_chat_template"
            )
        try:
            text = self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                enable_thinking=False,
            )
        except Exception as error:  # a template is a program of its own, and raises what it likes
            raise ForkLeftError(f"the chat template refuses {chat_history!r:.80}: {error}") from error
        return str(text)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The response to each request `(context, generation options)`, cut before the first `until` string."""
        asked = [_Asked.of(request.args[1], self.max_new_tokens) for request in requests]
        prompts = [self.tok_encode(request.args[0]) for request in requests]
        names = _names(requests)
        # Checked first: hours may pass until the longest prompt has its turn.
        for name, prompt, settings in zip(names, prompts, asked, strict=True):
            self.student.check_prompt(prompt, settings.max_new_tokens, name)
        alike: dict[_Asked, list[int]] = defaultdict(list)
        for number, settings in enumerate(asked):
            alike[settings].append(number)
        texts: dict[int, str] = {}
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests") as bar:
            for settings, numbers in alike.items():
                for part in _parts(numbers, self.batch_size * _BATCHES_AT_ONCE):
                    written = decode(
                        self.student,
                        [prompts[number] for number in part],
                        self.decoding,
                        max_new_tokens=settings.max_new_tokens,
                        temperature=settings.temperature,
                        top_p=settings.top_p,
                        # What lm_eval's --seed has set.
                        seed=torch.initial_seed(),
                        ids=[names[number] for number in part],
                        batch_size=self.batch_size,
                    )
                    for number, trajectory in zip(part, written, strict=True):
                        texts[number] = _cut(trajectory.text or "", settings.until)
                        self.cache_hook.add_partial("generate_until", requests[number].args, texts[number])
                    bar.update(len(part))
        return [texts[number] for number in range(len(requests))]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Called by `TemplateLM.loglikelihood` with texts, context ids and continuation ids."""
        found: dict[int, tuple[float, bool]] = {}
        pairs = [(context, continuation) for _, context, continuation in requests]
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests") as bar:
            for number, log_likelihood in log_likelihoods(self.student, pairs, batch_size=self.batch_size):
                found[number] = log_likelihood
                self.cache_hook.add_partial("loglikelihood", requests[number][0], log_likelihood)
                bar.update()
        return [found[number] for number in range(len(requests))]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Refused, with ForkLeftError."""
        raise ForkLeftError(
            "loglikelihood_rolling asks for the perplexity of running text. A diffusion student has none: it writes a "
            "response to a prompt, and in no fixed order, so that its likelihood can only be bounded; choose tasks of "
            "output type generate_until, multiple_choice or loglikelihood"
        )


def log_likelihoods(
    student: Student, pairs: Sequence[tuple[list[int], list[int]]], *, batch_size: int
) -> Iterator[tuple[int, tuple[float, bool]]]:
    """For each pair of context and continuation ids: its number, and (Σ_i log s_i(y_i), whether all are the likeliest).

    Continuations that differ only in their last token, such as the letters of one question, share a reading, so the
    pairs come in another order. Raises ForkLeftError for impossible ids, before anything is read.
    """
    shared: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = defaultdict(list)
    for number, (context, continuation) in enumerate(pairs):
        what = f"request {number}"
        if not continuation:
            raise ForkLeftError(
                f"{what}: the continuation adds no token to its context, so there is nothing to score; set the task's "
                "target_delimiter so that the choice begins a token of its own"
            )
        student.check_prompt(context, len(continuation), what)
        student.vocabulary.check(continuation, f"{what}: the continuation", student.tokenizer)
        shared[tuple(context), tuple(continuation[:-1])].append(number)
    # Only equal lengths share a batch, so that a long continuation takes no room from another's context.
    by_length: dict[int, list[list[int]]] = defaultdict(list)
    for (_, before_last), numbers in shared.items():
        by_length[len(before_last) + 1].append(numbers)
    for length, readings in by_length.items():
        for part in _parts(readings, batch_size):
            yield from _read_batch(student, pairs, part, length)


@torch.no_grad()
def _read_batch(
    student: Student, pairs: Sequence[tuple[list[int], list[int]]], part: Sequence[list[int]], length: int
) -> list[tuple[int, tuple[float, bool]]]:
    """One forward for a list of readings of equal length, each the numbers of the pairs that share it."""
    readings = [Reading(f"request {numbers[0]}", *pairs[numbers[0]], range(length)) for numbers in part]
    hidden_SD = prefix_hidden(student, readings, budget=length)
    numbers = [number for sharing in part for number in sharing]
    owners = on_device([place for place, sharing in enumerate(part) for _ in sharing], hidden_SD.device)
    rows_T = (owners[:, None] * length + torch.arange(length, device=hidden_SD.device)).flatten()
    tokens_T = on_device([pairs[number][1] for number in numbers], hidden_SD.device).flatten()
    logp, likeliest = [], []
    for rows, tokens in zip(rows_T.split(_HEAD_ROWS), tokens_T.split(_HEAD_ROWS), strict=True):
        logp_TV = student.logits(hidden_SD[rows]).log_softmax(dim=-1)
        logp.append(logp_TV.gather(1, tokens[:, None])[:, 0])
        likeliest.append(logp_TV.argmax(dim=-1) == tokens)
    sums = torch.cat(logp).view(-1, length).sum(dim=1).tolist()
    greedy = torch.cat(likeliest).view(-1, length).all(dim=1).tolist()
    return list(zip(numbers, zip(sums, greedy, strict=True), strict=True))


@dataclass(frozen=True)
class _Asked:
    """How a request wants its response to be written."""

    until: tuple[str, ...]
    max_new_tokens: int
    temperature: float
    top_p: float

    @classmethod
    def of(cls, options: Mapping[str, Any], budget: int) -> "_Asked":
        """From a task's generation options; without `do_sample` the temperature decides.

        Raises ForkLeftError for options that the sampler does not have: to ignore them would measure something else.
        """
        options = dict(options)
        until = options.pop("until", None) or ()
        lengths = [options.pop(name, None) for name in ("max_gen_toks", "max_new_tokens")]
        do_sample = options.pop("do_sample", None)
        temperature = float(options.pop("temperature", 1.0 if do_sample else 0.0))
        top_p = float(options.pop("top_p", 1.0))
        if options.get("num_beams") == 1:
            del options["num_beams"]
        if options:
            found = ", ".join(f"{name}={value}" for name, value in options.items())
            raise ForkLeftError(
                f"the task's generation options have {found}, which a diffusion student's sampler does not; there are "
                "until, max_gen_toks, do_sample, temperature and top_p: choose another task"
            )
        return cls(
            (until,) if isinstance(until, str) else tuple(until),
            next((int(length) for length in lengths if length is not None), budget),
            0.0 if do_sample is False else temperature,
            top_p,
        )


def _names(requests: Sequence[Any]) -> list[str]:
    """A name for each request: its task, its item, and a count of repeats, so that each repeat is sampled anew."""
    seen: Counter[tuple[str, int]] = Counter()
    names = []
    for request in requests:
        item = (request.task_name, request.doc_id)
        names.append(f"{request.task_name}/{request.doc_id}/{seen[item]}")
        seen[item] += 1
    return names


def _cut(text: str, until: Sequence[str]) -> str:
    return text[: min((place for stop in until if stop and (place := text.find(stop)) >= 0), default=len(text))]


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
