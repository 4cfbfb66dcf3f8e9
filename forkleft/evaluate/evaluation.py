"""`forkleft eval`: measures a model on benchmarks, one record for each try, and resumes where it stopped.

    run_evaluation(load_evaluated("runs/student"), [load_benchmark(BENCHMARKS["gsm8k"])], Path("results/student"))

The tries of a benchmark (items times samples) are cut into batches by their index, always in the same places, and the
random numbers of a try depend on seed, item and sample alone. So a run that was resumed, or spread over N processes
(`torchrun`: each takes every N-th batch), leaves the same records as one that was not.
"""

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import forkleft
from forkleft.digests import fingerprint, json_digest
from forkleft.errors import AutoregressiveError, DiffusionError, ForkLeftError
from forkleft.evaluate.benchmarks import BENCHMARKS, Benchmark, ItemSet
from forkleft.evaluate.protocols import (
    Evaluated,
    Settings,
    Try,
    answer,
    check_protocol,
    check_settings,
    decoding_for,
    tokenizer_of,
)
from forkleft.evaluate.results import FORMAT, SUMMARY, ResultFolder, line_of, read_results, record_of
from forkleft.files import check_writable
from forkleft.progress import Meter
from forkleft.students import Student, load_student
from forkleft.students.families import Decoding
from forkleft.teacher import load_teacher

# The packages that prompts, weights and verdicts depend on.
_PACKAGES = ("transformers", "tokenizers", "math-verify", "latex2sympy2_extended", "sympy")


def run_evaluation(
    model: Evaluated,
    item_sets: Sequence[ItemSet],
    output: str | Path,
    *,
    name: str = "",
    settings: Settings | None = None,
    limit: int | None = None,
    console: Console | None = None,
) -> dict[str, dict[str, Any]]:
    """Measure a model on benchmarks, into a folder for each of them in `output`.

    name: what to call the model in the summary. limit: take only the first so many items of each. console: for progress
    and results (default: standard error).

    Records of the same configuration that are already in the folder are kept. Under `torchrun` (RANK and WORLD_SIZE)
    each process does its share, and the one that ends last merges them. Returns the summaries of the finished
    benchmarks, by name. Raises ForkLeftError before anything is measured if a model cannot be measured in this way.
    """
    settings, console = settings or Settings(), console or Console(stderr=True)
    item_sets = [_limited(items, limit) for items in item_sets]
    _check_names([items.benchmark.name for items in item_sets])
    for items in item_sets:
        check_protocol(model, items.benchmark, items.items, settings)
    model.model.eval()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    facts = _model_facts(model)
    configurations = [_configuration(model, facts, items, settings) for items in item_sets]
    folders = [
        ResultFolder(Path(output) / items.benchmark.name, configuration)
        for items, configuration in zip(item_sets, configurations, strict=True)
    ]
    summaries = {}
    for items, folder in zip(item_sets, folders, strict=True):
        if summary := _evaluate(model, items, folder, settings, name, console, rank, world):
            summaries[items.benchmark.name] = summary
    return summaries


def check_evaluation(
    benchmarks: Sequence[Benchmark],
    output: str | Path,
    *,
    settings: Settings,
    limit: int | None = None,
    autoregressive: bool = False,
) -> None:
    """Raise ForkLeftError for what `run_evaluation` would refuse with any model and any questions.

    autoregressive: whether the model will be autoregressive.
    """
    _check_limit(limit)
    _check_names([benchmark.name for benchmark in benchmarks])
    for benchmark in benchmarks:
        check_settings(settings, benchmark, autoregressive=autoregressive)
        check_writable(Path(output) / benchmark.name)


def _configuration(model: Evaluated, facts: dict[str, Any], items: ItemSet, settings: Settings) -> dict[str, Any]:
    """All that the records depend on; results of different configurations are never mixed."""
    benchmark = items.benchmark
    asked = [[item.id, benchmark.messages(item), item.answer, benchmark.cluster_of(item)] for item in items.items]
    return {
        "format": FORMAT,
        "benchmark": benchmark.name,
        "protocol": benchmark.protocol,
        "verifier": benchmark.verifier.kind,
        "items": {"count": len(asked), "digest": json_digest(asked)},
        "model": facts,
        "sampler": _sampler(model, benchmark, settings),
        "batch_size": _batch_size(model, settings),
        "versions": {
            "forkleft": forkleft.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: version(name) for name in _PACKAGES},
        },
    }


def load_evaluated(
    path_or_hub_id: str | Path,
    *,
    autoregressive: bool = False,
    family: str | None = None,
    block_size: int | None = None,
    mask_token: str | int | None = None,
    chat_template: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device | None = None,
    device_map: str | None = None,
    batch_size: int = 32,
    trust_remote_code: bool = False,
    dense_attention: bool = False,
) -> Evaluated:
    """A diffusion model, loaded by `load_student`; or, if the user says so, an autoregressive one, by `load_teacher`.

    device_map: spreads an autoregressive model over several devices, instead of `device`; `auto`, as in Transformers.
    dense_attention: of a diffusion model, as for `load_student`.

    Raises ForkLeftError if the model cannot be loaded, or is of the other kind.
    """
    only_diffusion: dict[str, Any] = {"family": family, "block_size": block_size, "mask_token": mask_token}
    if not autoregressive:
        try:
            return load_student(
                path_or_hub_id,
                **only_diffusion,
                chat_template=chat_template,
                dtype=dtype,
                device=device,
                trust_remote_code=trust_remote_code,
                dense_attention=dense_attention,
            )
        except AutoregressiveError as error:
            raise ForkLeftError(f"{error}; or evaluate it as it is with --ar") from error
    if said := [name for name, value in only_diffusion.items() if value is not None]:
        raise ForkLeftError(f"an autoregressive model has no {' and no '.join(said)}; leave that out")
    spread: dict[str, Any] = {} if device_map is None else {"device_map": device_map}
    try:
        return load_teacher(
            path_or_hub_id,
            chat_template=chat_template,
            dtype=dtype,
            device=device if device_map is None else None,
            batch_size=batch_size,
            trust_remote_code=trust_remote_code,
            **spread,
        )
    except DiffusionError as error:
        raise ForkLeftError(f"{error}; evaluate it as it is, without --ar") from error


def _evaluate(
    model: Evaluated,
    items: ItemSet,
    folder: ResultFolder,
    settings: Settings,
    name: str,
    console: Console,
    rank: int,
    world: int,
) -> dict[str, Any] | None:
    benchmark = items.benchmark
    tries = [Try(item, sample) for item in items.items for sample in range(settings.samples)]
    keys = [(attempt.item.id, attempt.sample) for attempt in tries]
    size = _batch_size(model, settings)
    batches = [tries[start : start + size] for start in range(0, len(tries), size)][rank::world]
    known = folder.records()
    missing = [batch for batch in batches if any((attempt.item.id, attempt.sample) not in known for attempt in batch)]
    if missing:
        share = {(attempt.item.id, attempt.sample) for batch in batches for attempt in batch}
        done = [record for key, record in known.items() if key in share]
        label = benchmark.name if world == 1 else f"{benchmark.name} (process {rank + 1} of {world})"
        with folder.part(rank) as part, Meter(console, label, len(share), done=len(done), shown=rank == 0) as meter:
            right, tokens = sum(record.correct for record in done), 0
            for batch in missing:
                replies = answer(model, benchmark, batch, settings)
                records = [record_of(benchmark, *pair) for pair in zip(batch, replies, strict=True)]
                # A batch is always computed as a whole, so that its numbers stay the same; known records are kept.
                new = [record for record in records if record.key not in known]
                part.writelines(map(line_of, new))
                part.flush()
                right += sum(record.correct for record in new)
                tokens += sum(record.tokens for record in new)
                meter.move(meter.done + len(new))
                meter.tell(f"right {right / meter.done:.1%}  {tokens / max(meter.gone, 1e-9):.0f} tokens/s")
    about = {"model": name, "source": items.source}
    summary = folder.finish(keys, about, benchmark.items)
    if summary is not None or (rank == 0 and not missing and (folder.path / SUMMARY).is_file()):
        summary = summary or read_results(folder.path)[benchmark.name].summary
        console.print(result_line(benchmark.name, summary), highlight=False, markup=False)
    return summary


def result_line(name: str, summary: dict[str, Any]) -> str:
    """The figures of a benchmark in a line for a person, and how a student wrote."""
    results, sampler = summary["results"], summary["configuration"]["sampler"]
    estimate = results["accuracy"]
    line = f"{name}: {100 * estimate['value']:.1f}% ({100 * estimate['low']:.1f}–{100 * estimate['high']:.1f})"
    if results["samples"] > 1:
        best = f"pass@{results['samples']}"
        line += f" avg@{results['samples']}, {100 * results[best]:.1f}% {best}"
    line += f", {results['items']} items"
    if not results["complete"]:
        line += f" of {results['expected_items']}: not all of it"
    if "decoding" in sampler:
        how = Decoding(**{field.name: sampler[field.name] for field in fields(Decoding)})
        line += f"; {sampler['decoding']} decoding ({how})"
    return line


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ForkLeftError(f"limit must be at least 1 item, found {limit}")


def _limited(items: ItemSet, limit: int | None) -> ItemSet:
    _check_limit(limit)
    return items if limit is None else replace(items, items=items.items[:limit])


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise ForkLeftError(f"expected a benchmark to evaluate, found none; there are {', '.join(BENCHMARKS)}")
    for name in names:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ForkLeftError(f"{name!r} names a folder of the results: expected letters, digits, . _ and -")
        if names.count(name) > 1:
            raise ForkLeftError(f"the benchmark {name} is named twice")


def _model_facts(model: Evaluated) -> dict[str, Any]:
    stop_ids = model.vocabulary.stop_ids if isinstance(model, Student) else model.stop_ids
    return {
        "kind": "diffusion" if isinstance(model, Student) else "autoregressive",
        "fingerprint": fingerprint(model.model),
        "family": asdict(model.family) if isinstance(model, Student) else None,
        "mask_id": model.vocabulary.mask_id if isinstance(model, Student) else None,
        "stop_ids": list(stop_ids),
        "chat_template": json_digest(tokenizer_of(model).chat_template),
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "device": model.model.device.type,
    }


def _sampler(model: Evaluated, benchmark: Benchmark, settings: Settings) -> dict[str, Any]:
    budget = settings.budget(benchmark)
    if benchmark.protocol == "slot":
        if not isinstance(model, Student):
            return {"reads": "next token"}
        facts: dict[str, Any] = {"reads": "masked slot", "geometry": settings.geometry}
        return facts if settings.geometry == "truncated" else facts | {"max_new_tokens": budget}
    if not isinstance(model, Student):
        return {"order": "left_to_right", "max_new_tokens": budget, "samples": 1, "temperature": 0.0}
    facts = {"decoding": settings.decoding, **asdict(decoding_for(model, settings)), "max_new_tokens": budget}
    return facts | {name: getattr(settings, name) for name in ("samples", "temperature", "top_p", "seed")}


def _batch_size(model: Evaluated, settings: Settings) -> int:
    # A teacher cuts longer batches by its own size.
    return settings.batch_size if isinstance(model, Student) else min(settings.batch_size, model.batch_size)
