"""What each command of `forkleft` does with its arguments. What is heavy is imported when it runs."""

import argparse
import difflib
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from forkleft.errors import ForkLeftError


def _hide_loading_bars() -> None:
    """Transformers draws a progress bar for every model it loads; ours load in an instant."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def demo(options: argparse.Namespace) -> None:
    """`forkleft demo`."""
    from forkleft.lab.demo import UPDATES, demo

    _hide_loading_bars()
    updates = UPDATES if options.updates is None else options.updates
    demo(options.output, student=options.student, teacher=options.teacher, updates=updates)


def _place(options: argparse.Namespace) -> tuple[str, Any]:
    """The device and the precision that were asked for, or that fit."""
    import torch

    # Under torchrun every process has a GPU of its own.
    gpu = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    device = options.device or (gpu if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ForkLeftError(f"there is no device {device!r} here: {str(error).splitlines()[0]}") from error
    return device, getattr(torch, options.dtype or ("bfloat16" if device.startswith("cuda") else "float32"))


def _loading(options: argparse.Namespace) -> dict[str, Any]:
    """What was said of the model, its device and its precision, as the loaders take it."""
    device, dtype = _place(options)
    names = ("family", "block_size", "mask_token", "chat_template", "trust_remote_code")
    said = {name: getattr(options, name) for name in names}
    return said | {"device": device, "dtype": dtype}


def _load_student(options: argparse.Namespace) -> Any:
    from forkleft.students import load_student

    return load_student(options.model, **_loading(options))


def train(options: argparse.Namespace) -> None:
    """`forkleft train`."""
    if said := _recipe_options(options):
        from forkleft import recipes, runs

        if options.check:
            runs.check(*recipes.recipe_of(said))
            return
        trainer = runs.train(*recipes.recipe_of(said), said)
        if trainer.is_world_process_zero():
            left = "the model, its card, metrics.jsonl, curves.png and the checkpoints that were kept"
            print(f"{trainer.args.output_dir}: {left}")


def answer(options: argparse.Namespace) -> None:
    """`forkleft answer`."""
    if said := _recipe_options(options):
        from forkleft import recipes, runs

        # Any number of processes may ask: no update is divided among them.
        said.pop("questions_per_update", None)
        runs.answer(*recipes.recipe_of(said))


def _recipe_options(options: argparse.Namespace) -> dict[str, Any] | None:
    """What the recipe and the command line say; nothing, if only the list of options was asked for."""
    from forkleft import recipes

    if options.options:
        _list_options()
        return None
    if options.config is None:
        raise ForkLeftError(
            "expected a recipe: --config recipes/lab.yaml, for instance; --options lists what is in one"
        )
    _hide_loading_bars()
    return recipes.read_options(options.config, options.rest)


def _list_options() -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from forkleft.recipes import default_of, grouped_options

    console = Console()
    for title, options in grouped_options().items():
        console.print(f"\n{title}", style="bold underline", highlight=False)
        for name, option in options.items():
            console.print(Text.assemble((name, "bold"), "  ", (f"default {default_of(option)!r}", "dim")))
            if text := option.metadata.get("help"):
                console.print(Padding(Text(" ".join(text.split())), (0, 0, 0, 4), expand=False))


def generate(options: argparse.Namespace) -> None:
    """`forkleft generate`."""
    from forkleft.rollout import decoding_of
    from forkleft.writing import check_pause, read_prompts, user_turn, write_responses

    _hide_loading_bars()
    conversations = [user_turn(options.prompt)] if options.file is None else read_prompts(options.file)
    check_pause(options.slow, conversations, as_json=options.json)
    student = _load_student(options)
    said = {name: getattr(options, name) for name in ("order", "passes", "threshold")}
    write_responses(
        student,
        conversations,
        plain=options.plain,
        as_json=options.json,
        decoding=decoding_of(student.family, options.decoding, **said),
        pause=options.slow,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        batch_size=options.batch_size,
    )


def doctor(options: argparse.Namespace) -> None:
    """`forkleft doctor`."""
    from forkleft import doctor

    _hide_loading_bars()
    device, dtype = _place(options)
    student = doctor.stand_in(dtype, device) if options.model is None else _load_student(options)
    if not doctor.doctor(student):
        sys.exit(1)


def evaluate(options: argparse.Namespace) -> None:
    """`forkleft eval`."""
    from forkleft.evaluate.benchmarks import BENCHMARKS, load_benchmark
    from forkleft.evaluate.evaluation import check_evaluation, list_benchmarks, load_evaluated, run_evaluation
    from forkleft.evaluate.hub import HubData
    from forkleft.evaluate.protocols import Settings
    from forkleft.lab.benchmarks import LAB_BENCHMARKS, lab_items
    from forkleft.verify import MATHEMATICAL

    known = BENCHMARKS | LAB_BENCHMARKS
    if options.list:
        list_benchmarks(known.values(), folder=options.data)
        return
    for name in ("model", "benchmark", "output"):
        if getattr(options, name) is None:
            raise ForkLeftError(f"expected --{name}; forkleft eval --help explains, --list names the benchmarks")
    for name in options.benchmark:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "forkleft eval --list names all"
            raise ForkLeftError(f"there is no benchmark {name!r}; {hint}")
    if options.device_map is not None and (options.device is not None or not options.ar):
        raise ForkLeftError("--device-map spreads the model of --ar over devices; it goes with --ar, without --device")
    chosen = [known[name] for name in options.benchmark]
    if options.protocol is not None:
        chosen = [replace(one, protocol=options.protocol) for one in chosen]
    if options.verifier is not None:
        if others := [one.name for one in chosen if one.verifier not in MATHEMATICAL]:
            raise ForkLeftError(
                f"--verifier {options.verifier} is for mathematical answers, and those of {', '.join(others)} are not; "
                "evaluate them by themselves, without it"
            )
        chosen = [replace(one, verifier=options.verifier) for one in chosen]
    made = [one.name for one in chosen if one.made]
    said = [f"--{name}" for name in ("data", "subset", "split") if getattr(options, name) is not None]
    if made and said:
        raise ForkLeftError(
            f"the questions of {', '.join(made)} are made here, not read; leave out {' and '.join(said)}, or evaluate "
            "other benchmarks by themselves"
        )
    source = options.data
    if source is not None and not Path(source).expanduser().is_dir() and len(chosen) > 1:
        raise ForkLeftError(f"{source} holds the questions of one benchmark, and {len(chosen)} were named")
    if options.subset is not None or options.split is not None:
        if source is None or Path(source).expanduser().exists():
            raise ForkLeftError("--subset and --split are of a data set of the hub; name it with --data owner/name")
        source = HubData(source, (options.subset,), options.split or HubData.split)
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
    # Before questions are fetched, and a large model is loaded for minutes.
    check_evaluation(chosen, options.output, settings=settings, limit=options.limit, autoregressive=options.ar)
    items = [lab_items(one) if one.made else load_benchmark(one, source) for one in chosen]
    _hide_loading_bars()
    model = load_evaluated(
        options.model,
        autoregressive=options.ar,
        device_map=options.device_map,
        batch_size=options.batch_size,
        **_loading(options),
    )
    run_evaluation(model, items, options.output, name=options.model, settings=settings, limit=options.limit)


def compare(options: argparse.Namespace) -> None:
    """`forkleft compare`."""
    from forkleft.evaluate.compare import compare

    shape = {"digits": options.digits, "as_json": options.json, "as_markdown": options.markdown}
    compare(options.a, options.b, routes=options.routes, **shape)


def paper(options: argparse.Namespace) -> None:
    """`forkleft paper`."""
    from forkleft.study.paper_report import print_paper

    print_paper(options.table, as_json=options.json, as_markdown=options.markdown)


def study_run(options: argparse.Namespace) -> None:
    """`forkleft study run`."""
    import torch
    from rich.console import Console
    from transformers.utils import logging

    from forkleft.report.studies import show_study
    from forkleft.study.cells import CELLS
    from forkleft.study.plan import commands_of, plan_study, print_plan
    from forkleft.study.progress import GridProgress
    from forkleft.study.runner import run_cells
    from forkleft.study.tables import print_study
    from forkleft.study.timing import Rates

    # What it thinks of an option it says in the log of every cell.
    logging.set_verbosity_error()
    # A GPU is not divided among cells.
    jobs = options.jobs if options.jobs is not None else 1 if torch.cuda.is_available() else os.cpu_count() or 1
    if jobs < 1:
        raise ForkLeftError(f"--jobs must be at least 1, found {jobs}")
    plan = plan_study(
        options.file,
        options.output,
        seeds=options.seeds,
        base=options.base,
        overrides=options.set,
        benchmarks=options.benchmark,
        limit=options.limit,
        decoding=options.decoding,
    )
    console = Console()
    if options.dry_run:
        print_plan(plan, jobs, console)
        return
    plan.begin()
    if options.print_commands:
        for line in commands_of(plan, options.launcher):
            print(line)
        return
    with GridProgress(console, len(plan.cells), Rates.of_cells(plan.root / CELLS), jobs) as progress:
        failures = run_cells(plan.cells, plan.root, progress, jobs=jobs)
    print_study(*show_study(plan.folder), console)
    console.print(f"{plan.folder}: table.md, results.json and the figures", highlight=False)
    if failures:
        sys.exit(1)


def study_show(options: argparse.Namespace) -> None:
    """`forkleft study show`."""
    from rich.console import Console

    from forkleft.report.studies import TABLE, show_study, study_folders
    from forkleft.study.tables import print_study

    shown = []
    for folder in [found for path in options.folder for found in study_folders(path)]:
        results, analysis = show_study(folder)
        if options.markdown:
            print((folder / TABLE).read_text(encoding="utf-8"))
        elif options.json:
            shown.append({"study": results.name, "seeds": list(results.seeds)} | asdict(analysis))
        else:
            print_study(results, analysis, Console())
    if options.json:
        print(json.dumps(shown, indent=2, ensure_ascii=False))


def lm_eval(options: argparse.Namespace) -> None:
    """`forkleft lm-eval`."""
    from forkleft.evaluate import harness

    # Where lm_eval shows its own help, which knows none of our options.
    if not options.rest or {"-h", "--help"} & set(options.rest):
        print(options.own_help(), flush=True)
    if code := harness.main(options.rest, chat_template=options.chat_template):
        sys.exit(code)


def convert(options: argparse.Namespace) -> None:
    """`forkleft convert`."""
    import torch

    from forkleft.students import convert

    _hide_loading_bars()
    convert(
        options.model,
        options.output,
        family=options.family,
        mask_token=options.mask_token,
        block_size=options.block_size,
        gguf_file=options.gguf_file,
        dtype=None if options.dtype is None else getattr(torch, options.dtype),
    )
    print(f"{options.output}: a student of family {options.family}, to be trained before it can write")


def merge(options: argparse.Namespace) -> None:
    """`forkleft merge`."""
    import torch

    from forkleft.students import merge

    _hide_loading_bars()
    merge(options.model, options.output, dtype=getattr(torch, options.dtype))
    print(f"{options.output}: a whole model, the adapters of {options.model} added into the weights of their base")


def lab_sample(options: argparse.Namespace) -> None:
    """`forkleft lab sample`."""
    from forkleft.lab.questions import questions

    for item in questions(
        options.count,
        options.steps,
        split=options.split,
        seed=options.seed,
        shares=options.shares,
        form=options.form,
    ):
        if options.json:
            print(json.dumps(asdict(item)))
            continue
        lines = [("question", item.question), ("solution", item.solution), ("answer", item.answer)]
        if item.choices is not None:
            lines.insert(1, ("choices", "  ".join(line for line in item.prompt.splitlines()[1:])))
        print(item.id)
        for name, text in lines:
            print(f"  {name:<9} {text}")


def lab_accuracy(options: argparse.Namespace) -> None:
    """`forkleft lab accuracy`."""
    from forkleft.lab.accuracy import print_accuracy
    from forkleft.lab.models import MODELS
    from forkleft.lab.questions import HELD_OUT_SETS

    _hide_loading_bars()
    print_accuracy(options.model or MODELS, options.set or HELD_OUT_SETS, as_json=options.json, records=options.records)


def lab_routes(options: argparse.Namespace) -> None:
    """`forkleft lab routes`."""
    from forkleft.lab.models import STUDENTS
    from forkleft.lab.routes import print_routes

    _hide_loading_bars()
    print_routes(options.teacher, options.student or STUDENTS, options.set, as_json=options.json)
