"""On which route the lab's held-out questions fall, by the order in which the student writes.

    forkleft lab routes

Both right, the teacher alone, the student alone, or neither: the verdicts that decide how ForkLeft would supervise each
question (paper eq. `fork`). Only on the questions that the teacher alone gets right do its distributions teach.

The answers here are single digits, and a wrong chain may end in the right one. Such luck is counted too.
"""

import json
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import ItemSet
from forkleft.lab.accuracy import measure
from forkleft.lab.benchmarks import lab_set
from forkleft.lab.models import STUDENTS, TEACHERS, load_model
from forkleft.objective.routes import Route, route_of
from forkleft.prompts import prompt_ids
from forkleft.rollout import generate
from forkleft.rollout.orders import OrderName
from forkleft.students import Student, load_student
from forkleft.verify import Verifier

ROUTE_ORDERS: tuple[OrderName, ...] = ("high_entropy", "low_entropy", "confidence")
# As the paper names the pairs of verdicts in its diagnostics.
ROUTES = {
    Route.CE: "both",
    Route.LEFTOPD: "teacher only",
    Route.EXCLUDE: "student only",
    Route.GOLD: "neither",
}
LUCK = "by luck"


def count_routes(taught: Sequence[bool], student: Student, items: ItemSet, order: OrderName) -> dict[str, int]:
    """How many questions each route gets when the student writes in `order`, one token a pass.

    taught: whether the teacher is right on each of them. `by luck`: on how many the student's answer is right, but not
    every step before it.
    """
    benchmark = items.benchmark
    prompts = [prompt_ids(student.text_tokenizer, benchmark.messages(item)) for item in items.items]
    written = generate(student, prompts, order=order, max_new_tokens=benchmark.max_new_tokens)
    texts = [trajectory.text or "" for trajectory in written]
    found = benchmark.verifier.judge(texts, [item.answer for item in items.items])
    routes = [route_of(a_s, a_t) for a_s, a_t in zip(found, taught, strict=True)]
    whole = Verifier("exact").judge(texts, [item.solution or "" for item in items.items])
    lucky = sum(right and not exact for right, exact in zip(found, whole, strict=True))
    return {name: routes.count(route) for route, name in ROUTES.items()} | {LUCK: lucky}


def print_routes(teacher: str, students: Sequence[str], set_name: str, *, as_json: bool = False) -> None:
    """Print the share of each route, for each student and order, as a table or one JSON object a line."""
    if teacher not in TEACHERS:
        raise ForkLeftError(f"no lab teacher {teacher!r}; there are {', '.join(TEACHERS)}")
    if unknown := [name for name in students if name not in STUDENTS]:
        raise ForkLeftError(f"no lab student {unknown[0]!r}; there are {', '.join(STUDENTS)}")
    items = lab_set(set_name)
    if items.benchmark.protocol == "slot":
        raise ForkLeftError(f"{set_name} is read in the answer slot, where nothing is written; name a chain set")
    console = Console(stderr=as_json)
    with console.status(teacher):
        taught = [record.correct for record in measure(load_model(teacher), items).records]
    rows = []
    for name in students:
        student = load_student(f"lab:{name}")
        for order in ROUTE_ORDERS:
            with console.status(f"{name}, {order}"):
                counts = count_routes(taught, student, items, order)
            if as_json:
                print(json.dumps({"teacher": teacher, "student": name, "set": set_name, "order": order} | counts))
            shares = [f"{100 * count / len(taught):.1f}" for count in counts.values()]
            rows.append((name if order == ROUTE_ORDERS[0] else "", order, *shares))
    if not as_json:
        console.print(routes_table(f"Routes of {len(taught)} questions of {set_name}, {teacher} teaching, %", rows))


def routes_table(title: str, rows: Sequence[Sequence[str]]) -> Table:
    """A table that has room for the longest student's name in 80 columns: its headings stand on two lines."""
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("student", "order"):
        table.add_column(column, no_wrap=True)
    for column in (*ROUTES.values(), LUCK):
        table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
