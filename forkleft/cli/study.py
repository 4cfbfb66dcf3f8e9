"""`forkleft study`: grids of runs, and what they show."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from forkleft.cli.arguments import Commands, add_command, trust_verifier_argument
from forkleft.errors import ForkLeftError
from forkleft.trust import Trust


def add(commands: Commands) -> None:
    """Add the commands and their arguments."""
    study = commands.add_parser("study", help="grids of runs, and what they show", description="Grids of runs.")
    study_commands = study.add_subparsers(title="commands", metavar="COMMAND", required=True)

    running = add_command(study_commands, "run", run, "run what is missing of a study, and show it")
    running.add_argument("file", type=Path, metavar="FILE", help="a study, such as recipes/studies/order-view.yaml")
    running.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="for cells, which studies share, and tables"
    )
    running.add_argument("--jobs", type=int, metavar="N", help="cells at a time (default: the cores; 1 with a GPU)")
    running.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="run only these seeds of the study")
    running.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of all arms, or ARM.OPTION=VALUE of one (repeatable)",
    )
    running.add_argument("--base", type=Path, metavar="FILE", help="another base recipe")
    running.add_argument("--benchmark", nargs="+", metavar="NAME", help="other benchmarks")
    running.add_argument("--limit", type=int, metavar="N", help="only the first N items of each benchmark")
    running.add_argument("--decoding", choices=("static", "native"), help="decode so, as forkleft eval does")
    trust_verifier_argument(running, "a file of the study")
    help_text = "obey trust_remote_code: true in the study and its recipes, which runs code of checkpoints"
    running.add_argument("--trust-remote-code", action="store_true", help=help_text)
    running.add_argument("--dry-run", action="store_true", help="print the cells and how long they would take")
    running.add_argument("--print-commands", action="store_true", help="print the commands of the cells instead")
    help_text = "in front of those (default: as the study says, or torchrun --nproc-per-node 8)"
    running.add_argument("--launcher", metavar="WORDS", help=help_text)

    showing = add_command(study_commands, "show", show, "tables and figures of studies")
    showing.add_argument("folder", type=Path, nargs="+", metavar="DIR", help="the folder of a study, or of several")
    shape = showing.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="all figures as JSON")
    shape.add_argument("--markdown", action="store_true", help="the tables as Markdown")

    paging = add_command(study_commands, "page", page, "one page of words and figures from the results of studies")
    paging.add_argument("folder", type=Path, metavar="DIR", help="studies, page.md (the words) and claims.yaml")
    paging.add_argument("--output", type=Path, required=True, metavar="FILE", help="the page, Markdown")


def run(options: argparse.Namespace) -> None:
    """`forkleft study run`."""
    import torch
    from rich.console import Console
    from transformers.utils import logging

    from forkleft.report.studies import show_study
    from forkleft.study.names import CELLS
    from forkleft.study.plan import commands_of, plan_study, print_plan
    from forkleft.study.progress import GridProgress
    from forkleft.study.runner import run_cells
    from forkleft.study.tables import print_study
    from forkleft.study.timing import Rates

    # Its warnings about options are in the log of every cell.
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
        trust=Trust(verifiers=options.trust_verifier, remote_code=options.trust_remote_code),
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
    console.print(f"{plan.folder}: table.md, results.json and the figures", highlight=False, markup=False)
    if failures:
        sys.exit(1)


def show(options: argparse.Namespace) -> None:
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


def page(options: argparse.Namespace) -> None:
    """`forkleft study page`."""
    from forkleft.report.results_page import write_results_page

    write_results_page(options.folder, options.output)
    print(options.output)
