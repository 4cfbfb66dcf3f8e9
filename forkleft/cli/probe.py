"""`forkleft probe`: what a student knows from the left alone, and when it decides its forks."""

import argparse
from typing import TYPE_CHECKING, Any

from forkleft.cli.arguments import ORDERS, Commands, add_command, hide_loading_bars, model_arguments, student_of
from forkleft.objective.fork_entropy import FORK_ENTROPY

if TYPE_CHECKING:
    from forkleft.prompts import Message, Reading
    from forkleft.students import Student


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    probe = add_command(
        commands, "probe", run, "compare what a student predicts from both sides and from the left, and find its forks"
    )
    model_arguments(probe)
    data = "questions with solutions: lab:chain-4, a .jsonl file, or a data set of the hub"
    probe.add_argument("--data", required=True, metavar="SOURCE", help=data)
    probe.add_argument("--subset", metavar="NAME", help="of a data set of the hub")
    probe.add_argument("--split", default="test", metavar="NAME", help="of a data set of the hub (default test)")
    probe.add_argument("--questions", type=int, default=100, metavar="N", help="how many (default 100)")
    probe.add_argument("--prompt-template", default="{question}", metavar="TEXT", help="default {question}")
    form = "of a solution in which the verifier does not find its answer (default {solution}, as it is)"
    probe.add_argument("--reference-template", default="{solution}", metavar="TEXT", help=form)
    probe.add_argument("--verifier", default="math", metavar="NAME", help="of the answers (default math)")
    probe.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="response budget (default 256)")
    probe.add_argument("--passes", type=int, metavar="N", help="passes a block (default: one token a pass)")
    geometry = "what the student sees behind a prefix (docs/method.md); default truncated"
    probe.add_argument("--geometry", choices=("truncated", "canvas"), default="truncated", help=geometry)
    probe.add_argument("--orders", nargs="+", choices=ORDERS, default=ORDERS[:3], metavar="ORDER", help="of writing")
    fork = f"a position is a fork if the prefix leaves so many nats open (default {FORK_ENTROPY}: two equal ways)"
    probe.add_argument("--fork-entropy", type=float, default=FORK_ENTROPY, metavar="NATS", help=fork)
    probe.add_argument("--batch-size", type=int, default=16, metavar="N", help="questions at a time (default 16)")
    teacher = "measure instead how near the student's predictions are to this autoregressive model's"
    probe.add_argument("--teacher", metavar="MODEL", help=teacher)
    probe.add_argument("--json", action="store_true", help="numbers instead of tables")


def run(options: argparse.Namespace) -> None:
    """`forkleft probe`."""
    import json
    from dataclasses import asdict

    from rich.console import Console

    from forkleft.cli.sources import rows_of
    from forkleft.errors import ForkLeftError
    from forkleft.prompts import Reading, prompt_ids
    from forkleft.report.probe import probe_page
    from forkleft.rollout import generate
    from forkleft.study.probe import probe_forks, probe_views
    from forkleft.train.data import read_examples
    from forkleft.train.prepare import reference_ids
    from forkleft.verify import Verifier

    hide_loading_bars()
    if not options.fork_entropy >= 0:
        raise ForkLeftError(f"--fork-entropy is in nats: expected 0 or more, found {options.fork_entropy}")
    verifier = Verifier.of(options.verifier)
    rows = rows_of(options.data, options.subset, options.split, options.questions, None, seed=0)
    examples = read_examples(
        rows,
        prompt_template=options.prompt_template,
        reference_template=options.reference_template,
        verifier=verifier,
    )
    student, budget = student_of(options), options.max_new_tokens
    prompts = [prompt_ids(student.text_tokenizer, example.messages) for example in examples]
    references = [
        None if example.reference is None else reference_ids(student, example.reference, budget) for example in examples
    ]
    readings = [
        Reading(example.id, prompt, reference, range(len(reference)))
        for example, prompt, reference in zip(examples, prompts, references, strict=True)
        if reference is not None
    ]
    settings = {"budget": budget, "geometry": options.geometry, "batch_size": options.batch_size}
    if options.teacher is not None:
        _print_agreement(options, student, readings, {example.id: example.messages for example in examples}, settings)
        return
    views = probe_views(student, readings, **settings)
    passes = options.passes or student.family.sub_block or student.family.block_size
    found, answers = {}, [example.answer for example in examples]
    for order in dict.fromkeys(options.orders):
        written = generate(
            student, prompts, order=order, passes=passes, max_new_tokens=budget, batch_size=options.batch_size
        )
        forks = probe_forks(student, prompts, written, passes=passes, fork_entropy=options.fork_entropy, **settings)
        texts = [trajectory.text or "" for trajectory in written]
        right = verifier.judge(texts, answers, ids=[example.id for example in examples])
        found[order] = (forks, sum(right) / len(right))
    if options.json:
        said = ("model", "data", "geometry", "max_new_tokens", "verifier", "fork_entropy")
        asked = {name: getattr(options, name) for name in said} | {"questions": len(examples), "passes": passes}
        orders = {order: {"right": right} | asdict(forks) for order, (forks, right) in found.items()}
        print(json.dumps({"settings": asked, "views": asdict(views), "orders": orders}, indent=2))
        return
    title = f"{options.model} on {len(readings)} solutions of {options.data}, {options.geometry} prefix"
    Console().print(probe_page(views, found, title=title, fork_entropy=options.fork_entropy))


def _print_agreement(
    options: argparse.Namespace,
    student: "Student",
    readings: "list[Reading]",
    messages: "dict[str, tuple[Message, ...]]",
    settings: dict[str, Any],
) -> None:
    """Print how near the student is to a teacher; as JSON, with the numbers of every position."""
    import json
    from dataclasses import asdict

    from rich.console import Console

    from forkleft.prompts import prompt_ids
    from forkleft.report.probe import agreement_table
    from forkleft.study.agreement import agreement
    from forkleft.teacher import load_teacher
    from forkleft.train.prepare import sharing_vocabulary

    teacher = load_teacher(options.teacher, student=student, batch_size=options.batch_size)
    prompts = [prompt_ids(teacher.tokenizer, messages[reading.id]) for reading in readings]
    found = agreement(sharing_vocabulary(student, teacher), teacher, readings, prompts, **settings)
    if options.json:
        print(json.dumps(asdict(found)))
        return
    title = f"{options.model} and {options.teacher} on {len(readings)} solutions of {options.data}"
    Console().print(agreement_table(found, title=title))
