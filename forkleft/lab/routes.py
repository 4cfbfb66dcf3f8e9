"""On which route the lab's held-out questions fall, by the order in which the student writes.

    forkleft lab routes

Both right, the teacher alone, the student alone, or neither: the verdicts that decide how ForkLeft would supervise each
question (paper eq. `fork`). Only the questions that the teacher alone gets right are taught by its distributions.
"""

import json
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from forkleft.errors import ForkLeftError
from forkleft.lab.accuracy import measure, prompt_ids
from forkleft.lab.benchmarks import MAX_NEW_TOKENS
from forkleft.lab.models import STUDENTS, TEACHERS, LabModel, load_model
from forkleft.lab.questions import Question, held_out
from forkleft.objective.routes import Route, route_of
from forkleft.rollout import generate
from forkleft.rollout.orders import OrderName
from forkleft.verify import Verifier

ROUTE_ORDERS: tuple[OrderName, ...] = ("high_entropy", "low_entropy", "confidence")
# As the paper names the pairs of verdicts in its diagnostics.
ROUTES = {
    Route.CE: "both",
    Route.LEFTOPD: "teacher only",
    Route.EXCLUDE: "student only",
    Route.GOLD: "neither",
}


def count_routes(teacher: LabModel, student: LabModel, items: Sequence[Question], order: OrderName) -> dict[str, int]:
    """How many questions each route gets when the student writes in `order`, one token a pass."""
    writer = student.student
    if writer is None:
        raise ForkLeftError(f"{student.card.name} is autoregressive and has no order to write in; name a student")
    taught = [record.correct for record in measure(teacher, items).records]
    written = generate(writer, prompt_ids(student, items), order=order, max_new_tokens=MAX_NEW_TOKENS)
    found = Verifier("lab").judge([t.text or "" for t in written], [item.answer for item in items])
    routes = [route_of(a_s, a_t) for a_s, a_t in zip(found, taught, strict=True)]
    return {name: routes.count(route) for route, name in ROUTES.items()}


def print_routes(teacher: str, students: Sequence[str], set_name: str, *, as_json: bool = False) -> None:
    """Print the share of each route, for each student and order, as a table or one JSON object a line."""
    if teacher not in TEACHERS:
        raise ForkLeftError(f"no lab teacher {teacher!r}; there are {', '.join(TEACHERS)}")
    if unknown := [name for name in students if name not in STUDENTS]:
        raise ForkLeftError(f"no lab student {unknown[0]!r}; there are {', '.join(STUDENTS)}")
    items = held_out(set_name)
    if items[0].choices is not None:
        raise ForkLeftError(f"{set_name} is read in the answer slot, where nothing is written; name a chain set")
    console = Console(stderr=as_json)
    teaching = load_model(teacher)
    table = Table(title=f"Routes of {len(items)} questions of {set_name}, {teacher} teaching, %", box=box.SIMPLE_HEAD)
    for column in ("student", "order"):
        table.add_column(column)
    for column in ROUTES.values():
        table.add_column(column, justify="right")
    for name in students:
        student = load_model(name)
        for order in ROUTE_ORDERS:
            with console.status(f"{name}, {order}"):
                counts = count_routes(teaching, student, items, order)
            if as_json:
                print(json.dumps({"teacher": teacher, "student": name, "set": set_name, "order": order} | counts))
            shares = [f"{100 * count / len(items):.1f}" for count in counts.values()]
            table.add_row(name if order == ROUTE_ORDERS[0] else "", order, *shares)
    if not as_json:
        console.print(table)
