"""One update of ForkLeft, from prompts to the optimiser step, on two small models of the lab:

    python examples/one_update.py

Read it beside the paper or `docs/method.md`; names in backquotes are the paper's equations. Each question is read by
itself here. The trainer computes the same numbers for all questions in one forward (`forkleft/train/collect.py`,
`forkleft/objective/update.py`).

Shapes: S selected positions, D and E the widths of student and teacher.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from forkleft import Route, Student, Teacher, generate, load_student, load_teacher
from forkleft.lab.questions import Question, questions
from forkleft.objective.head import HeadRows, TeacherRows, head_rows
from forkleft.objective.losses import contrast, qualifying_pairs, ranking_loss, selected_mean
from forkleft.objective.positions import select_positions
from forkleft.objective.readouts import all_mask_hidden, prefix_hidden
from forkleft.objective.routes import route_of
from forkleft.prompts import Reading, prompt_ids
from forkleft.train.prepare import sharing_vocabulary
from forkleft.verify import Verifier

SEED, BUDGET, PASSES = 15, 64, 32  # BUDGET: tokens of a response. PASSES: R, in which a block of it is written.
RHO, MU, DELTA, RANK_WEIGHT = 0.25, 0.1, 0.1, 0.1  # ρ, μ, δ and λ of the paper.


@dataclass(frozen=True)
class Fixed:
    """A question before its losses: route, c with S_c, for GOLD also g with S_g, for LEFTOPD the teacher's states."""

    route: Route
    own: Reading
    reference: Reading | None = None
    teacher_rows: TeacherRows | None = None


def collect(student: Student, teacher: Teacher, items: Sequence[Question]) -> list[Fixed]:
    """Everything that comes before the losses (paper alg. `method`)."""
    conversations = [[{"role": "user", "content": item.prompt}] for item in items]
    prompts = [prompt_ids(student.tokenizer, messages) for messages in conversations]
    # Rollout (`commit`): the student writes c, its most uncertain positions first. The teacher writes its own answer d.
    responses = generate(student, prompts, order="high_entropy", passes=PASSES, max_new_tokens=BUDGET)
    answers = teacher.answers(conversations, max_new_tokens=BUDGET)
    # Verify: is c right, and is d?
    expected = [item.answer for item in items]
    verifier = Verifier("lab")
    student_right = verifier.judge([response.text for response in responses], expected)
    teacher_right = verifier.judge([answer.text for answer in answers], expected)

    def selected(k: int, ids: list[int], stream: str) -> Reading:
        # Positions (`position-sampling`): a share ρ of them and a real EOS. Response and reference are drawn apart.
        ends = ids[-1] in student.vocabulary.stop_ids
        key = {"seed": SEED, "update": 0, "question": items[k].id, "stream": stream}
        return Reading(items[k].id, prompts[k], ids, select_positions(len(ids), ends_with_eos=ends, rho=RHO, **key))

    fixed = []
    for k, item in enumerate(items):
        # Route (`fork`): the two verdicts choose how the question is supervised.
        route = route_of(student_right[k], teacher_right[k])
        own, reference, teacher_rows = selected(k, responses[k].tokens, "response"), None, None
        if route is Route.GOLD:
            ids = student.tokenizer.encode(item.solution, add_special_tokens=False)
            reference = selected(k, [*ids, student.vocabulary.stop_ids[0]], "reference")
        if route is Route.LEFTOPD:
            # The teacher's prefix readout (`left`): t_i = p_φ(· | P, c_<i), P rendered by its own template.
            asked = replace(own, prompt=prompt_ids(teacher.tokenizer, conversations[k]))
            teacher_rows = TeacherRows(teacher.hidden([asked])[0], teacher.head_weight)
        fixed.append(Fixed(route, own, reference, teacher_rows))
    return fixed


def read(student: Student, hidden_SD: torch.Tensor, reading: Reading, teacher: TeacherRows | None = None) -> HeadRows:
    """At each position −log s_i(y_i), KL(t_i ‖ s_i) if there is a teacher, entropy and highest log-probability."""
    targets_S = torch.tensor([reading.response[i] for i in reading.positions])
    return head_rows(hidden_SD, student.head_weight, targets_S, student.excluded_V, teacher=teacher)


def losses(student: Student, question: Fixed) -> torch.Tensor:
    """Content and ranking loss of a question, both 0 if it is excluded."""
    if question.route is Route.EXCLUDE:
        return torch.zeros(2)
    # The student's prefix readout (`left`): s_i = p_θ(· | P, c_<i), target and suffix hidden. Gradients flow.
    left = read(student, prefix_hidden(student, [question.own], budget=BUDGET), question.own, question.teacher_rows)
    # Content loss (`branchloss`, `selected-mean`): the mean over the selected positions.
    if question.route is Route.GOLD:
        reference = read(student, prefix_hidden(student, [question.reference], budget=BUDGET), question.reference)
        content = selected_mean(reference.nll_S)
    else:
        content = selected_mean(left.nll_S if question.route is Route.CE else left.kl_K)
    # Ranking loss (`coupling`, `rank`): less confidence where the prefix tells more.
    mask = read(student, all_mask_hidden(student, [question.own], budget=BUDGET), question.own)
    pairs_SS = qualifying_pairs(contrast(mask.entropy_S, left.entropy_S), MU)
    return torch.stack([content, ranking_loss(left.confidence_S, pairs_SS, DELTA)])


def objective(student: Student, batch: Sequence[Fixed]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """L(θ) (`total`) and the two losses of each question. Excluded questions count in the size of the batch."""
    found = [losses(student, question) for question in batch]
    return sum(content + RANK_WEIGHT * rank for content, rank in found) / len(batch), found


def main() -> None:
    """Do one update and print what happened."""
    student = load_student("lab:student-block")
    teacher = load_teacher("lab:teacher-strong", student=student)
    student = sharing_vocabulary(student, teacher)
    # This teacher knows all chains. On the choice questions it writes no steps, and is often wrong.
    items = questions(3, 4, split="train", seed=SEED) + questions(3, 2, split="train", seed=SEED, form="choice")
    batch = collect(student, teacher, items)
    before, found = objective(student, batch)
    if all(question.route is Route.EXCLUDE for question in batch):
        raise SystemExit("every question is excluded: no update")

    optimizer = torch.optim.AdamW(student.model.parameters(), lr=1e-4, weight_decay=0.0)
    before.backward()
    torch.nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        after, _ = objective(student, batch)

    print(f"{'question':30} {'route':8} {'tokens':>6} {'content':>8} {'ranking':>8}")
    for item, question, (content, rank) in zip(items, batch, found, strict=True):
        print(f"{item.question:30} {question.route:8} {len(question.own.response):6} {content:8.5f} {rank:8.5f}")
    print(f"loss before {before:.5f}, after {after:.5f}")


if __name__ == "__main__":
    main()
