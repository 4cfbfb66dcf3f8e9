"""Under torchrun: a tiny student under FSDP2 writes, is traced and learns, two questions a process.

python sharded_runs.py OUTPUT VIEW
"""

import sys

import torch
import torch.distributed as dist
from exact import float64_throughout
from questions import Question, plan
from tiny import FAMILIES, STOP, tiny_model, tiny_student, tiny_tokenizer
from torch.distributed.fsdp import fully_shard

from forkleft.objective.supervision import ObjectiveSettings
from forkleft.objective.update import update_loss
from forkleft.prompts import Reading
from forkleft.rollout import generate
from forkleft.teacher import Answer, Teacher
from forkleft.train.collect import Collected
from forkleft.train.data import Example
from forkleft.train.traces import traces
from forkleft.train.wrapped import answer_calls, gathered
from forkleft.verify import Judgement

# The first stops soon or late by chance; together the processes need different numbers of forwards.
PROMPTS = [[1, 2], [3, 4, 5], [6], [7, 8, 9, 10]]
BUDGETS = [4, 4, 24, 24]
RIGHT = [(True, True), (False, True), (False, False), (False, True)]


def learn(student, model, chosen, settings):
    """What is written for some of the questions, their traces, and their part of the loss, with its gradient."""
    teacher = Teacher(tiny_model("qwen2", seed=9, hidden_size=24, dtype=torch.float64), None, stop_ids=[STOP])
    budget = max(BUDGETS[k] for k in chosen)
    with torch.no_grad(), gathered(model):
        written = model(
            forkleft_call=lambda: generate(student, [PROMPTS[k] for k in chosen], max_new_tokens=budget, passes=2)
        )
    lessons = []
    for k, trajectory in zip(chosen, written, strict=True):
        question = Question(f"q{k}", PROMPTS[k], trajectory.tokens, *RIGHT[k], reference=[1, 2, 3, STOP])
        lesson = plan(question, settings, (STOP,), seed=0, update=0)
        if lesson.taught is not None:
            (hidden_SE,) = teacher.hidden([Reading(lesson.name, PROMPTS[k], *lesson.taught)])
            lesson = lesson.__class__(**{**lesson.__dict__, "teacher_hidden_SE": hidden_SE})
        lessons.append(lesson)
    collected = collected_of(chosen, written, lessons)
    with torch.no_grad(), gathered(model):
        rows = model(forkleft_call=lambda: traces(student, teacher, collected, settings, [len(chosen)], step=1))
    loss, _ = model(
        forkleft_call=lambda: update_loss(
            student, lessons, settings, batch_size=len(PROMPTS), teacher_weight_VE=teacher.head_weight
        )
    )
    loss.backward()
    return [trajectory.tokens for trajectory in written], rows, loss.detach()


def collected_of(chosen, written, lessons):
    """The batch that traces are made of; its answers are made up."""
    examples = [Example(f"q{k}", (), "5", None) for k in chosen]
    judged = [[Judgement(RIGHT[k][who], "5") for k in chosen] for who in (0, 1)]
    return Collected(examples, written, [Answer("5", True) for _ in chosen], *judged, lessons)


def make(view):
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer(), dtype=torch.float64)
    answer_calls(student.model)
    return student, ObjectiveSettings(budget=24, rho=0.5, mu=0.02, view=view)


def main(output, view):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    student, settings = make(view)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for layer in student.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(student.model, mesh=mesh)
    per_process = len(PROMPTS) // world
    tokens, rows, loss = learn(student, student.model, range(rank * per_process, (rank + 1) * per_process), settings)
    dist.all_reduce(loss)
    everything = [None] * world
    dist.all_gather_object(everything, (tokens, rows))
    gradients = {name: parameter.grad.full_tensor() for name, parameter in student.model.named_parameters()}
    if rank == 0:
        tokens, rows = ([one for part in everything for one in part[k]] for k in (0, 1))
        found = {"tokens": tokens, "traces": rows, "loss": loss, "gradients": gradients}
        torch.save(found, output)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    float64_throughout()
    main(*sys.argv[1:])
