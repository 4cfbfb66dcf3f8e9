// The guided example: the method in six steps, on one question of the run.

// Each step of the tour: what to look at (an element's id), what to do, and what to say.
function walkSteps() {
  const { fork, position } = data.example;
  const { trace, frames } = state;
  const k = state.place.get(position);
  const student = trace.student_alternatives[k];
  const teacher = trace.teacher_alternatives[k];
  const forkStep = state.stepOf[fork];
  const answer = (said) => (said === null || said === "" ? "(none found)" : quoted(said));
  const others = position === fork ? "" : " It is another place than the fork: where to teach is drawn at random.";
  const last = data.showcase.length ? "The next part shows answers from before and after training; whether it helped is for figures over many questions to say, not for a few examples." : "Whether it helped is for figures over many questions to say.";
  return [
    ["tokens", () => { pin(null); goTo(0); }, `The student gets a question, and starts from blanks. It may fill them in any order${frames.at(-1).block > 0 ? " within a block; the blocks come one after the other" : ""}.`],
    ["tokens", () => { pin(null); goTo(forkStep); }, `Face the fork first: at ${quoted(trace.tokens[fork])} it was most torn, with only ${percent(trace.confidence[fork])} for its best guess. In training it must decide that early, in step ${forkStep} of ${frames.length}. In use, where the surest words come first, it would be put off until the student’s own words around it left little choice.`],
    ["tokens", () => { pin(null); goTo(frames.length); }, `The rest was written around that choice. The answer ${answer(trace.student_extracted)} is wrong; the right one is ${answer(trace.expected)}. The teacher, asked on its own, answers ${answer(trace.teacher_extracted)}. So on this question the teacher teaches.`],
    ["tokens", () => pin(position), `Teach on the left: look at ${quoted(trace.tokens[position])}, position ${position + 1}. What is right of it is pale: the teacher cannot see it, so it is hidden from the student, too. Same question, same left: any difference is what the student does not know yet.${others}`],
    ["detail", () => pin(position), `There the student says ${quoted(student[0])} with ${percent(student[1])}; the teacher says ${quoted(teacher[0])} with ${percent(teacher[1])}. Training moves the student’s odds towards the teacher’s. No word is replaced: the student goes on from its own.`],
    ["tokens", () => pin(null), `That is ForkLeft: face the fork first, teach on the left. After training, the student writes as it always did, its most confident words first. ${last}`],
  ];
}

// Scrolls so that a part of the viewer is seen beside the text of the tour: whole if it fits, else the word in question.
function bringIntoView(id) {
  const tour = $("walk").getBoundingClientRect();
  const atBottom = getComputedStyle($("walk")).position === "fixed";
  const top = (atBottom ? 0 : document.querySelector(".top").offsetHeight + tour.height) + 12;
  const room = innerHeight - top - (atBottom ? tour.height : 0) - 12;
  const from = $(id).closest(".written, .told").getBoundingClientRect();
  const part = $(id).getBoundingClientRect();
  const word = document.querySelector("#tokens .target, #tokens .now");
  // Best from the heading on; else the part alone; else the line with the word.
  let begin = part.bottom - from.top <= room ? from.top : part.top;
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
