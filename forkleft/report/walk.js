// The guided example: the method in six steps, on one question of the run.

// When the fork was written, and when it would be in use: what the order of writing says, and no more.
function forkStory(fork) {
  const { trace, frames, stepOf } = state;
  const frame = frames[stepOf[fork] - 1];
  const own = frames.filter((other) => other.block === frame.block);
  const when = `step ${own.indexOf(frame) + 1} of ${own.length < frames.length ? `the ${own.length} of its block` : own.length}`;
  const alone = own.indexOf(frame) ? "" : ", before any other word of its block could make one choice look certain";
  const found = trace.entropy[fork] >= data.fork ? "at" : "no blank was a fork here; the nearest to one was";
  return `Face the fork first: ${found} ${quoted(trace.tokens[fork])}, position ${fork + 1}, it was most torn; its best guess had ${percent(trace.confidence[fork])}. In training the blank that it is least sure of comes first, so it decided this in ${when}${alone}. In use the surest word comes first: there, this blank would wait as long as another one is surer.`;
}

// Each step of the tour: what to look at (an element's id), what to do, and what to say.
function walkSteps() {
  const { fork, position } = data.example;
  const { trace, frames, place } = state;
  const k = place.get(position);
  const student = trace.student_alternatives[k];
  const teacher = trace.teacher_alternatives[k];
  const answer = (said) => (said === null || said === "" ? "(none found)" : quoted(said));
  const others = position === fork ? "" : " It is another place than the fork: where to teach is drawn at random.";
  const judged = { final: "Only the final answer is judged: ", whole: "Every step is judged: ", own: "The answer " }[runOf(state.index).judges];
  const all = place.size > 1 ? ` The same is done at all ${place.size} ●.` : "";
  const last = data.showcase.length ? "The next part shows answers from before and after training; whether it helped is for figures over many questions to say, not for a few examples." : "Whether it helped is for figures over many questions to say.";
  return [
    ["tokens", () => { pin(null); goTo(0); }, `The student gets a question, and starts from blanks. It may fill them in any order${frames.at(-1).block > 0 ? " within a block; the blocks come one after the other" : ""}.`],
    ["tokens", () => { pin(null); goTo(state.stepOf[fork]); }, forkStory(fork)],
    ["tokens", () => { pin(null); goTo(frames.length); }, `Now all is written. ${judged}${answer(trace.student_extracted)} is wrong; the right one is ${answer(trace.expected)}. The teacher, asked on its own, answers ${answer(trace.teacher_extracted)}. So on this question the teacher teaches.`],
    ["tokens", () => pin(position), `Teach on the left: look at the outlined ${quoted(trace.tokens[position])}. What is right of it is dashed: the teacher cannot see it, so it is hidden from the student, too. Same question, same left: any difference is what the student does not know yet.${others}`],
    ["detail", () => pin(position), `There the student says ${quoted(student[0])} with ${percent(student[1])}; the teacher says ${quoted(teacher[0])} with ${percent(teacher[1])}. Training moves the student’s odds towards the teacher’s. No word of the answer is replaced: it learns on what it wrote itself.${all}`],
    ["tokens", () => pin(null), `That is ForkLeft: face the fork first, teach on the left. After training, the student writes as it always did, its most confident words first. ${last}`],
  ];
}

// Scrolls so that a part of the viewer is seen above the tour: whole if it fits, else the word in question.
function bringIntoView(id) {
  const head = document.querySelector(".top");
  const top = (getComputedStyle(head).position === "sticky" ? head.offsetHeight : 0) + 12;
  const room = innerHeight - top - $("walk").offsetHeight - 12;
  const from = $(id).closest(".written, .told").getBoundingClientRect();
  const part = $(id).getBoundingClientRect();
  const word = document.querySelector("#tokens .target, #tokens .now");
  const pick = document.querySelector(".pick").getBoundingClientRect();
  // Best from the choice of questions on; else from the heading; else the part alone; else the line with the word.
  let begin = [pick.top, from.top].find((first) => part.bottom - first <= room) ?? part.top;
  if (id === "tokens" && part.height > room && word) begin = word.getBoundingClientRect().top - room / 2;
  scrollBy({ top: begin - top });
}

function walkTo(step) {
  const steps = step < 0 ? [] : walkSteps();
  if (step === steps.length && step > 0) {
    walkTo(-1);
    $(data.showcase.length ? "orders" : "viewer").scrollIntoView();
    return;
  }
  state.walk = step;
  document.documentElement.classList.toggle("touring", step >= 0);
  $("walk").hidden = step < 0;
  $("walk-start").hidden = step >= 0 || !data.example;
  if (step < 0) return;
  const [part, act, text] = steps[step];
  act();
  $("walk-text").textContent = text;
  $("walk-count").textContent = `${step + 1} of ${steps.length}`;
  $("walk-back").disabled = step === 0;
  const end = data.showcase.length ? "Before and after" : "Done";
  $("walk-next").textContent = step === steps.length - 1 ? end : "Next";
  bringIntoView(part);
}

function startWalk() {
  const index = data.example.trace;
  $("run").value = String(data.traces[index].run);
  fillRoutes();
  fillQuestions(index);
  walkTo(0);
  $("walk-next").focus({ preventScroll: true });
}
