"""`forkleft plan`: what a recipe needs on given GPUs, before anything is loaded."""

import argparse
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkleft.cli.arguments import Commands, add_command
from forkleft.cli.recipe import recipe_arguments, recipe_options
from forkleft.errors import ForkLeftError, check_count, did_you_mean

if TYPE_CHECKING:
    from forkleft.objective.routes import Route
    from forkleft.scale.devices import Cluster
    from forkleft.scale.setting import Setting


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    summary = "compute what a recipe needs on given GPUs: memory, time, and what fits"
    plan = add_command(commands, "plan", run, summary, takes_options=True)
    recipe_arguments(plan)
    plan.usage = f"{plan.prog} --config FILE --gpus 8x80GB [--OPTION VALUE ...]"
    plan.add_argument("--gpus", metavar="GPUS", help="8x80GB, 8xh100, 2x8xh100 (nodes, GPUs of each, kind)")
    plan.add_argument("--processes", type=int, metavar="N", help="that train (default: one for each GPU)")
    plan.add_argument("--server-gpus", type=int, metavar="N", help="of the teacher's server (default: those left over)")
    plan.add_argument("--prompt-tokens", type=int, default=128, metavar="N", help="of a prompt (default 128)")
    help_text = "of a response in the mean, for the times (default: max_new_tokens)"
    plan.add_argument("--response-tokens", type=int, metavar="N", help=help_text)
    help_text = "shares of CE, LEFTOPD, GOLD, EXCLUDE in an update (default 0.25,0.5,0.25,0)"
    plan.add_argument("--routes", metavar="SHARES", help=help_text)
    help_text = "the student's config.json or its folder, if it is on the hub and that is not reached"
    plan.add_argument("--student-config", type=Path, metavar="FILE", help=help_text)
    plan.add_argument("--teacher-config", type=Path, metavar="FILE", help="the same for the teacher")
    help_text = "another figure of the GPU, e.g. compute=0.3 or bandwidth=2e12 (docs/scale.md); may be repeated"
    plan.add_argument("--figure", action="append", default=[], metavar="NAME=VALUE", help=help_text)


def run(options: argparse.Namespace) -> None:
    """`forkleft plan`."""
    if options.gpus is None and not options.options:
        raise ForkLeftError("expected the GPUs to plan for: --gpus 8x80GB, for instance")
    said = recipe_options(options)
    if said is None:
        return
    from transformers.utils import logging

    from forkleft.report.plan import show
    from forkleft.scale import shapes
    from forkleft.scale.devices import parse_gpus
    from forkleft.scale.plan import plan_of
    from forkleft.scale.setting import ROUTES, setting_of, with_server
    from forkleft.train.recipes import planned_here, recipe_of

    for name in ("prompt_tokens", "response_tokens", "processes", "server_gpus"):
        if getattr(options, name) is not None:
            check_count(f"--{name.replace('_', '-')}", getattr(options, name))
    # What it says about options concerns a run, not a plan.
    logging.set_verbosity_error()
    # The questions of an update are divided among the processes of the plan, not among those of this machine.
    here = {name: value for name, value in planned_here(said)[0].items() if name != "questions_per_update"}
    recipe, config = recipe_of(here)
    student, family, student_source = shapes.student_of(
        recipe.student,
        file=options.student_config,
        family=recipe.family,
        block_size=recipe.block_size,
        targets=recipe.lora_targets,
    )
    teacher, teacher_source = shapes.teacher_of(recipe.teacher, file=options.teacher_config)
    setting = setting_of(
        said,
        recipe,
        config,
        student=student,
        teacher=teacher,
        family=family,
        cluster=_with_figures(parse_gpus(options.gpus), options.figure),
        prompt=options.prompt_tokens,
        response=options.response_tokens,
        processes=options.processes,
        routes=ROUTES if options.routes is None else _routes(options.routes),
    )
    plans, remarks = [plan_of(setting)], []
    try:
        plans.append(plan_of(with_server(setting, server_gpus=options.server_gpus, processes=options.processes)))
    except ForkLeftError as error:
        if options.server_gpus is not None:
            raise
        remarks.append(f"No plan with a teacher on a server: {error}.")
    show(plans, [student_source, teacher_source])
    for remark in [*_remarks([plan.setting for plan in plans]), *remarks]:
        print(textwrap.fill(remark, 80))


def _remarks(settings: "list[Setting]") -> Iterator[str]:
    from forkleft.scale.devices import GB

    for count, setting in {setting.processes: setting for setting in settings if not setting.divides}.items():
        yield (
            f"With {count} process(es) add --per_device_train_batch_size {setting.at_once}: batches of {setting.batch} "
            f"do not divide the {setting.share} questions of each."
        )
    for setting in settings:
        if setting.served:
            size = setting.teacher_bytes * setting.teacher.weights / setting.server_gpus / GB
            yield f"Each GPU of the teacher's server holds {size:.1f} GB of its weights; the engine uses the rest."


def _with_figures(cluster: "Cluster", figures: list[str]) -> "Cluster":
    known = [field.name for field in fields(cluster.device) if field.name != "name"]
    for figure in figures:
        name, _, text = figure.partition("=")
        if name not in known:
            raise ForkLeftError(f"unknown figure {name!r}; there are {', '.join(known)}{did_you_mean(name, known)}")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        # Shares of the other figures.
        most = 1.0 if name in ("compute", "streaming", "usable") else sys.float_info.max
        if not 0 < value <= most:
            bound = " and at most 1" if most == 1.0 else ""
            raise ForkLeftError(f"--figure {name}: expected a number above 0{bound}, found {text!r}")
        changed: dict[str, Any] = {name: value}
        cluster = replace(cluster, device=replace(cluster.device, **changed))
    return cluster


def _routes(text: str) -> "dict[Route, float]":
    from forkleft.objective.routes import Route

    try:
        shares = [float(word) for word in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != len(Route) or min(shares, default=-1.0) < 0 or not abs(sum(shares) - 1) < 1e-6:
        raise ForkLeftError(
            f"--routes: expected {len(Route)} shares that add up to 1, for {', '.join(Route)}, found {text!r}"
        )
    return dict(zip(Route, shares, strict=True))
