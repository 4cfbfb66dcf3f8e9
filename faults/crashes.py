"""Crashes: real runs, killed at random times and at named moments, started again, and compared with one left alone.

A fault is a SIGKILL (or SIGTERM, which asks) at a random time, or just before the run writes, renames or removes a file
that was chosen at random among those of a moment: the answers' file, a checkpoint while it is written, its new name, …
After one to three faults the run is left to end, and its end must equal that of a run without faults. Of several
processes, a fault hits all, the main one alone (a study's runner, the first rank), or another alone.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from faults import scenarios
from faults.scenarios import Scenario, fresh
from faults.spawner import ENVIRONMENT, ROOT, SECONDS, Spawner
from faults.tally import Tallies, Tally
from forkleft.study.names import CELLS, RESULTS, STUDY
from forkleft.train.checkpoints import STAGING

# The share of the kills that each scenario gets; two processes start slowly, and so do the commands of a study.
SHARES = {"train": 0.4, "eval": 0.2, "answer": 0.2, "two processes": 0.1, "study": 0.1}
_KILL, _ASK = int(signal.SIGKILL), int(signal.SIGTERM)
_POLL = 0.002
# Before there is anything to lose.
_SET_UP = "set-up"
# Whom a fault hits, and how the table says that.
_WHOM = {"all": "", "main": ", the main process alone", "other": ", another process alone"}


@dataclass(frozen=True)
class Fault:
    """What happens to a process: at a share of the time that a whole run takes, or at an event, the nth of its kind.

    moment: what it is called in the table. number: of the signal. whom: `all` processes, the `main` one or an `other`.
    """

    moment: str
    number: int = _KILL
    share: float | None = None
    event: str | None = None
    nth: int = 0
    whom: str = "all"


@dataclass(frozen=True)
class Whole:
    """A run that was left alone: its folder, how long it took, and what it did to files, in order."""

    folder: Path
    seconds: float
    events: tuple[str, ...]


def run(work: Path, kills: int, seed: int, console: Console) -> list[Tally]:
    """So many SIGKILLs and more, divided among all scenarios; SIGTERMs come on top. work: a folder for the runs."""
    tallies = Tallies()
    draw = random.Random(seed)
    work.mkdir(parents=True)
    with Spawner() as spawner, scenarios.answer_server() as asked:
        chosen = [
            scenarios.training(),
            scenarios.evaluation(),
            scenarios.answering(asked),
            scenarios.training("two processes", processes=2),
            scenarios.study(work),
        ]
        for scenario in chosen:
            wanted = max(1, round(kills * SHARES[scenario.name]))
            console.print(f"crashes: {scenario.name}, {wanted} kills or more, seed {seed}", highlight=False)
            attack(spawner, scenario, work / scenario.name.replace(" ", "-"), wanted, draw, tallies)
    return tallies.all()


def attack(
    spawner: Spawner, scenario: Scenario, work: Path, wanted: int, draw: random.Random, tallies: Tallies
) -> None:
    """Episodes of one scenario until there were so many kills. Fewer are a failure, too."""
    work.mkdir(parents=True, exist_ok=True)
    whole = left_alone(spawner, scenario, work)
    done = 0
    for number in range(10 * wanted):
        if done >= wanted:
            break
        planned = [a_fault(scenario, whole, draw) for _ in range(draw.randint(1, 3))]
        faults, lost = episode(spawner, scenario, work, whole, planned, number)
        done += sum(fault.number == _KILL for fault in faults)
        for fault in faults:
            tallies.add(f"{scenario.name}: {fault.moment}", lost)
        if lost and not faults:
            tallies.add(f"{scenario.name}: no fault", lost)
    if done < wanted:
        tallies.add(f"{scenario.name}: kills", [f"expected {wanted} kills, only {done} came before the end of a run"])


def left_alone(spawner: Spawner, scenario: Scenario, work: Path) -> Whole:
    """Run a scenario without faults. Raises RuntimeError if that fails."""
    folder, events = fresh(work / "whole"), work / "events.txt"
    events.unlink(missing_ok=True)
    began = time.monotonic()
    code = _start(spawner, scenario, folder, work / "whole.log", events=events)
    if code:
        raise RuntimeError(f"{scenario.name} failed without any fault:\n{_end_of(work / 'whole.log')}")
    lines = tuple(events.read_text(encoding="utf-8").splitlines()) if events.exists() else ()
    return Whole(folder, time.monotonic() - began, lines)


def episode(
    spawner: Spawner, scenario: Scenario, work: Path, whole: Whole, planned: Sequence[Fault], number: int
) -> tuple[list[Fault], list[str]]:
    """Faults one after the other, then the end. The faults that came before the end, and what was lost."""
    folder, log = fresh(work / "run"), work / f"run-{number}.log"
    log.unlink(missing_ok=True)
    done: list[Fault] = []
    for fault in [*planned, None]:
        kept, since = scenarios.kept_answers(folder / "teacher_answers.jsonl"), _asked(scenario)
        code = _start(spawner, scenario, folder, log, fault=fault, seconds=whole.seconds)
        if scenario.asked is not None and (again := scenario.asked.repeated(since, kept)):
            return done, [f"{len(again)} answers were asked for again that were on disk; see {log}"]
        if fault is not None and code in _expected(fault, scenario):
            done.append(fault)
        elif code:
            ended = "hung" if code is None else f"ended with code {code}"
            return done or [fault or planned[-1]], [f"{ended} after {_names(done)}; see {log}: {_end_of(log)}"]
        else:
            break
    if wrong := scenario.differences(whole.folder, folder):
        return done, [f"after {_names(done)}: {'; '.join(wrong)}; see {log}"]
    log.unlink(missing_ok=True)
    return done, []


def a_fault(scenario: Scenario, whole: Whole, draw: random.Random) -> Fault:
    """A fault at random: half of them at a time, half at a moment, each moment as often as another."""
    ask = draw.random() < 0.2
    how, number = ("asked to end", _ASK) if ask else ("killed", _KILL)
    moments: dict[str, list[tuple[str, int]]] = {}
    for event, count in Counter(whole.events).items():
        if (moment := moment_of(event)) != _SET_UP:
            moments.setdefault(moment, []).extend((event, nth) for nth in range(count))
    if not moments or draw.random() < 0.5:
        several = scenario.has_commands or scenario.processes > 1
        whom = draw.choice(list(_WHOM)) if several else "all"
        return Fault(f"{how} at any time{_WHOM[whom]}", number, share=draw.random(), whom=whom)
    moment = draw.choice(sorted(moments))
    event, nth = draw.choice(moments[moment])
    # The process hits itself: of a study, the runner.
    return Fault(f"{how} at {moment}", number, event=event, nth=nth, whom="main")


def moment_of(event: str) -> str:
    """The moment that an event belongs to, for people."""
    operation, _, name = event.partition(" ")
    top, _, rest = name.partition("/")
    if top == STAGING:
        return "checkpoint write"
    if top.startswith("checkpoint-"):
        return "checkpoint rename" if not rest else "checkpoint removal"
    if "teacher_answers" in name:
        return "answer write"
    if "records" in name or "summary" in name:
        return "record write"
    if name.endswith(("report.html", ".png", ".svg", "table.md", RESULTS)):
        return "report write"
    if top == CELLS or name.endswith(STUDY):
        return "cell write"
    if name.endswith(".jsonl"):
        return "metrics write"
    if name == "." or name.endswith(".lock") or "configuration" in name:
        return _SET_UP
    return "new folder" if operation == "make" else "model write"


def _start(
    spawner: Spawner,
    scenario: Scenario,
    folder: Path,
    log: Path,
    *,
    fault: Fault | None = None,
    seconds: float = 0.0,
    events: Path | None = None,
) -> int | None:
    """Run a scenario once, with or without a fault. Its exit code; None if it does not end."""
    delay = None if fault is None or fault.share is None else fault.share * seconds
    if scenario.processes > 1:
        return _distributed(scenario, folder, log, delay, fault)
    watch: dict[str, object] = {"folder": folder, "events": events}
    if fault is not None and fault.event is not None:
        watch |= {"at": fault.event, "nth": fault.nth, "signal": fault.number}
    pid = spawner.start(scenario.words(folder), log, **watch)
    code = spawner.wait(SECONDS if delay is None else delay)
    if code is not None:
        return code
    commands = _commands_of(pid) if scenario.has_commands else []
    if delay is None or fault is None:
        # It hangs.
        fault = Fault("hung")
    for process in _hit(fault, [pid, *commands], passed_on=scenario.has_commands):
        _send(process, fault.number)
    ended = spawner.wait()
    if fault.whom == "all":
        for process in commands:
            _await_end(process)
    # Else its commands go on, and the next runner must wait for them by itself.
    return None if delay is None else ended


def _hit(fault: Fault, processes: Sequence[int], *, passed_on: bool = False) -> Sequence[int]:
    """Of processes, the main one first, those that a fault hits. passed_on: the main one passes SIGTERM on."""
    if fault.whom == "other":
        return processes[1:2]
    return processes[:1] if fault.whom == "main" or (passed_on and fault.number == _ASK) else processes


def _distributed(scenario: Scenario, folder: Path, log: Path, delay: float | None, fault: Fault | None) -> int | None:
    """Two processes under torchrun, of which one or both are hit. The exit code of torchrun, which is 0 or 1."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(scenario.processes)]
    launch += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "forkleft"]
    with log.open("a", encoding="utf-8") as file:
        process = subprocess.Popen(
            [*launch, *scenario.words(folder)],
            cwd=ROOT,
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        return process.wait(SECONDS if delay is None else delay)
    except subprocess.TimeoutExpired:
        ranks = _commands_of(process.pid)
        if delay is None or fault is None or not ranks:
            _send(process.pid, _KILL)
        else:
            for rank in _hit(fault, ranks):
                _send(rank, fault.number)
    try:
        code = process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        for left in (*_commands_of(process.pid), process.pid):
            _send(left, _KILL)
        process.wait()
        return None
    for rank in ranks:
        _await_end(rank)
    return code


def _expected(fault: Fault, scenario: Scenario) -> tuple[int, ...]:
    """The exit codes of a process that the fault has hit."""
    if scenario.processes > 1:
        # torchrun's own, or its end by our signal if it had not started the processes yet.
        return (1, -_KILL)
    if fault.whom == "other":
        # The runner goes on without the cell of the command.
        return (1,)
    # Before Python has set its handlers, SIGTERM ends a process as it always does.
    return (-_KILL,) if fault.number == _KILL else (128 + _ASK, -_ASK)


def _commands_of(pid: int) -> list[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [int(number) for number in found]


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _await_end(pid: int) -> None:
    """Wait for a process that is not ours to end, and let go of its files and locks."""
    for _ in _ticks():
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return


def _ticks() -> Iterator[None]:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        yield
        time.sleep(_POLL)


def _asked(scenario: Scenario) -> int:
    return 0 if scenario.asked is None else len(scenario.asked.questions)


def _names(faults: Sequence[Fault]) -> str:
    said = [f"{fault.moment} ({fault.share or f'{fault.event}, {fault.nth}'})" for fault in faults]
    return ", ".join(said) or "no fault"


def _end_of(log: Path) -> str:
    return " | ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:])
