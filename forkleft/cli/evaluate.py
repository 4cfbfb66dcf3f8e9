"""`forkleft eval`: measure a model on benchmarks."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forkleft.cli.arguments import (
    Commands,
    add_command,
    hide_loading_bars,
    loading,
    model_arguments,
    sampler_arguments,
    say_loading,
    trust_verifier_argument,
)
from forkleft.errors import ForkLeftError, nearest
from forkleft.trust import Trust

if TYPE_CHECKING:
    from forkleft.evaluate.benchmarks import Benchmark
    from forkleft.evaluate.hub import HubData


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    evaluate = add_command(commands, "eval", run, "measure a model on benchmarks, one record an item")
    evaluate.add_argument("--list", action="store_true", help="list the benchmarks, and whether their data is at hand")
    model_arguments(evaluate, required=False)
    evaluate.add_argument("--ar", action="store_true", help="the model is autoregressive: a teacher, a reference")
    help_text = "with --ar, over several devices: auto, balanced … (default: on --device alone)"
    evaluate.add_argument("--device-map", metavar="MAP", help=help_text)
    help_text = "gsm8k, mmlu, lab-chain-4 …, or a YAML file that describes your own"
    evaluate.add_argument("--benchmark", nargs="+", action="extend", metavar="NAME", help=help_text)
    evaluate.add_argument(
        "--output", type=Path, metavar="FOLDER", help="for the results; an evaluation that stopped there goes on"
    )
    help_text = "the questions: a file, a folder, or owner/name on the hub (default: $FORKLEFT_DATA, then the hub)"
    evaluate.add_argument("--data", metavar="SOURCE", help=help_text)
    evaluate.add_argument("--subset", metavar="NAME", help="of the data set on the hub")
    evaluate.add_argument("--split", metavar="NAME", help="of the data set on the hub (default test)")
    help_text = "let the model write, or compare letters in the answer slot (default: the benchmark's)"
    evaluate.add_argument("--protocol", choices=("generated", "slot"), help=help_text)
    help_text = "of mathematical answers: opdlm (the default, as the paper's were), math (as in training); "
    help_text += "of any that are written: your own function, package.module:function"
    evaluate.add_argument("--verifier", metavar="NAME", help=help_text)
    trust_verifier_argument(evaluate, "a benchmark's file")
    evaluate.add_argument("--limit", type=int, metavar="N", help="only the first N items")
    evaluate.add_argument("--samples", type=int, default=1, metavar="K", help="responses an item, for avg@k and pass@k")
    sampler_arguments(evaluate)
    evaluate.add_argument("--max-new-tokens", type=int, metavar="N", help="response budget (default: the benchmark's)")
    evaluate.add_argument(
        "--geometry",
        choices=("truncated", "canvas"),
        default="truncated",
        help="of the answer slot (default truncated)",
    )


def run(options: argparse.Namespace) -> None:
    """Evaluate, or list the benchmarks."""
    from forkleft.evaluate.benchmarks import load_benchmark
    from forkleft.evaluate.listing import list_benchmarks

    known, chosen = _known_and_chosen(options)
    if options.list:
        own = [benchmark for benchmark in chosen if benchmark.name not in known]
        list_benchmarks([*known.values(), *own], folder=options.data)
        return
    for name in ("model", "benchmark", "output"):
        if getattr(options, name) is None:
            raise ForkLeftError(f"expected --{name}; forkleft eval --help explains, --list names the benchmarks")
    if options.device_map is not None and (options.device is not None or not options.ar):
        raise ForkLeftError("--device-map spreads the model of --ar over devices; it goes with --ar, without --device")
    if options.protocol is not None:
        chosen = [replace(benchmark, protocol=options.protocol) for benchmark in chosen]
    if options.verifier is not None:
        chosen = _judged_by(options.verifier, chosen)
    source = _source(options, chosen)
    # Imported only now: mistakes above are found without waiting for PyTorch.
    say_loading(f"forkleft eval: {options.model}")
    from forkleft.evaluate.evaluation import check_evaluation, load_evaluated, run_evaluation
    from forkleft.evaluate.protocols import Settings

    settings = Settings(
        samples=options.samples,
        temperature=options.temperature,
        top_p=options.top_p,
        decoding=options.decoding,
        passes=options.passes,
        threshold=options.threshold,
        max_new_tokens=options.max_new_tokens,
        geometry=options.geometry,
        batch_size=options.batch_size,
        seed=options.seed,
    )
    # Checked before questions are fetched and a large model is loaded for minutes.
    check_evaluation(chosen, options.output, settings=settings, limit=options.limit, autoregressive=options.ar)
    item_sets = [load_benchmark(benchmark, source) for benchmark in chosen]
    hide_loading_bars()
    model = load_evaluated(
        options.model,
        autoregressive=options.ar,
        device_map=options.device_map,
        batch_size=options.batch_size,
        **loading(options),
    )
    run_evaluation(model, item_sets, options.output, name=options.model, settings=settings, limit=options.limit)


def _known_and_chosen(options: argparse.Namespace) -> tuple[dict[str, "Benchmark"], list["Benchmark"]]:
    """The benchmarks of the package by name, and those that --benchmark names, by name or in files."""
    from forkleft.evaluate.benchmarks import BENCHMARKS, read_benchmarks
    from forkleft.lab.benchmarks import LAB_BENCHMARKS

    known = {**BENCHMARKS, **LAB_BENCHMARKS}
    named = () if options.verifier is None else (options.verifier,)
    trust = Trust(verifiers=options.trust_verifier, named=named)
    chosen = []
    for name in options.benchmark or ():
        if not name.endswith((".yaml", ".yml")):
            if name not in known:
                near = nearest(name, known)
                hint = f"did you mean {near}?" if near else "forkleft eval --list names all"
                raise ForkLeftError(f"there is no benchmark {name!r}; {hint}")
            chosen.append(known[name])
            continue
        for benchmark in read_benchmarks(name, trust):
            if benchmark.name in known:
                raise ForkLeftError(f"{name}: there is a benchmark {benchmark.name} already; give yours another name")
            chosen.append(benchmark)
    return known, chosen


def _judged_by(name: str, chosen: Sequence["Benchmark"]) -> list["Benchmark"]:
    """The benchmarks with the verifier of --verifier. Raises ForkLeftError if it does not fit them."""
    from forkleft.verify import MATHEMATICAL, Verifier

    verifier = Verifier.of(name)
    if verifier.function is not None:
        others = [benchmark.name for benchmark in chosen if benchmark.protocol == "slot"]
        reason = "judges what is written, and {} compare letters in a slot; add --protocol generated, or"
    else:
        others = [benchmark.name for benchmark in chosen if {verifier.kind, benchmark.verifier.kind} - {*MATHEMATICAL}]
        reason = "is for mathematical answers, and those of {} are not;"
        if verifier.kind not in MATHEMATICAL:
            reason = "cannot be given to {}: expected opdlm, math or package.module:function;"
    if others:
        raise ForkLeftError(
            f"--verifier {verifier.kind} {reason.format(', '.join(others))} evaluate them by themselves, without it"
        )
    return [replace(benchmark, verifier=verifier) for benchmark in chosen]


def _source(options: argparse.Namespace, chosen: Sequence["Benchmark"]) -> "str | HubData | None":
    """Where --data, --subset and --split say the questions are. Raises ForkLeftError if that cannot be."""
    from forkleft.evaluate.benchmarks import data_at_hand
    from forkleft.evaluate.hub import HubData

    made = [benchmark.name for benchmark in chosen if benchmark.source is not None]
    said = [f"--{name}" for name in ("data", "subset", "split") if getattr(options, name) is not None]
    if made and said:
        raise ForkLeftError(
            f"the questions of {', '.join(made)} are made here, not read; leave out {' and '.join(said)}, or evaluate "
            "other benchmarks by themselves"
        )
    source: str | None = options.data
    if source is not None and not Path(source).expanduser().is_dir() and len(chosen) > 1:
        raise ForkLeftError(f"{source} holds the questions of one benchmark, and {len(chosen)} were named")
    if options.subset is not None or options.split is not None:
        if source is None or Path(source).expanduser().exists():
            raise ForkLeftError("--subset and --split are of a data set of the hub; name it with --data owner/name")
        return HubData(source, (options.subset,), options.split or HubData.split)
    if source is None:
        for benchmark in chosen:
            if benchmark.source is None:
                # Raises if FORKLEFT_DATA names no folder.
                data_at_hand(benchmark)
    return source
