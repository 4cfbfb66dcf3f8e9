// The fork viewer: a question, how its response was written, and what both models say at a word.

// Entropy in nats below which a choice is certain: the best guess has more than 99%.
const CERTAIN = 0.05;
// Words on each side of a position that are shown around it.
const AROUND = 24;

const state = { index: -1, trace: null, frames: [], elements: [], frame: 0, pinned: null, hover: null, timer: null, walk: -1, details: false };
// Of each route: its name in lists, who was right and what follows, and why.
const ROUTES = {
  CE: ["both right", "Both are right: the student keeps its own words", "Its final answer is right, so it learns its own words once more, as they are; the teacher says nothing."],
  LEFTOPD: ["teacher only", "Only the teacher is right: it teaches on the left", "At each ●, the student learns the teacher’s odds, with both seeing only what is on the left."],
  GOLD: ["neither", "Both are wrong: a reference solution teaches", "The teacher does not know either. The student learns the words of a written solution, if there is one."],
  EXCLUDE: ["student only", "Only the student is right: the question is left out", "A teacher that is wrong would do harm here. Nothing is learned from this question."],
};
// Why a blank was filled, by the order of the run.
const ORDERS = {
  high_entropy: (blanks) => `Of all ${blanks}, the student was least sure of this one`,
  low_entropy: (blanks) => `Of all ${blanks}, this one had the least uncertainty`,
  confidence: (blanks) => `Of all ${blanks}, the student was surest of this one`,
  left_to_right: (blanks) => `It is the leftmost of the ${blanks}`,
  random: (blanks) => `It is one of the ${blanks}, drawn at random`,
};
// What this run does in another way than the method that the page explains.
const OTHERWISE = {
  low_entropy: "In training, this run writes its least uncertain word first, not its most uncertain one.",
  confidence: "In training, this run writes its most confident word first, not its most uncertain one.",
  left_to_right: "In training, this run writes from left to right, not its most uncertain word first.",
  random: "In training, this run writes in a random order, not its most uncertain word first.",
  target_masked: "At a ●, this run lets the student see both sides when it is taught, and the teacher the left alone. What the student would write, below, is from the left alone.",
};
const nameOf = (route) => (ROUTES[route] ?? [route])[0];
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const runOf = (index) => data.runs[data.traces[index].run];

function matching() {
  const run = Number($("run").value);
  const route = $("route").value;
  return data.traces.map((row, k) => k).filter((k) => data.traces[k].run === run && (route === "" || data.traces[k].route === route));
}

function fillRoutes() {
  const run = Number($("run").value);
  const rows = data.traces.filter((row) => row.run === run);
  const counts = Object.keys(ROUTES).map((route) => [route, rows.filter((row) => row.route === route).length]);
  put($("route"), option("", `all (${rows.length})`), ...counts.filter(([, count]) => count).map(([route, count]) => option(route, `${nameOf(route)} (${count})`)));
}

function fillQuestions(wanted) {
  const found = matching();
  const groups = new Map();
  found.forEach((k) => {
    const step = data.traces[k].step;
    if (!groups.has(step)) groups.set(step, make("optgroup"));
    groups.get(step).label = `update ${step}`;
    groups.get(step).append(option(k, `${nameOf(data.traces[k].route)}: ${data.traces[k].label}`));
  });
  put($("question"), ...groups.values());
  show(found.includes(wanted) ? wanted : found[0]);
}

function show(index) {
  if (index === undefined) return;
  stop();
  state.index = index;
  state.trace = parsed(`trace-${index}`);
  state.frames = framesOf(state.trace);
  state.pinned = state.hover = null;
  $("question").value = String(index);
  drawPrompt($("prompt"), state.trace.prompt);
  const run = runOf(index);
  $("lab-note").hidden = !run.lab;
  const otherwise = [run.order, run.view].map((name) => OTHERWISE[name]).filter(Boolean);
  $("otherwise").hidden = !otherwise.length;
  $("otherwise").textContent = otherwise.join(" ");
  $("pass").max = String(state.frames.length);
  const found = matching();
  $("previous").disabled = found.indexOf(index) <= 0;
  $("next").disabled = found.indexOf(index) === found.length - 1;
  draw();
  drawWhy();
  goTo(state.frames.length);
}

function draw() {
  const trace = state.trace;
  const place = new Map(trace.positions.map((position, k) => [position, k]));
  state.place = place;
  state.elements = drawTokens($("tokens"), trace, state.frames, place);
  const stepOf = [];
  state.frames.forEach((frame, k) => frame.at.forEach((i) => { stepOf[i] = k + 1; }));
  state.stepOf = stepOf;
  const blocks = blockEdges(trace).size;
  state.elements.forEach((element, i) => {
    element.setAttribute("role", "option");
    element.tabIndex = i === (state.pinned ?? 0) ? 0 : -1;
    element.dataset.at = String(i);
    const block = state.frames[stepOf[i] - 1].block + 1;
    const marks = `${blocks > 1 ? `, block ${block}` : ""}${trace.entropy[i] >= data.fork ? ", fork" : ""}${place.has(i) ? ", taught here" : ""}`;
    element.setAttribute("aria-label", `${visible(trace.tokens[i])}, position ${i + 1}, step ${stepOf[i]}, best guess ${percent(trace.confidence[i])}${marks}`);
  });
  if (!trace.tokens.length) put($("tokens"), make("span", "soft", "The response is empty."));
  blocksNote($("blocks"), trace);
  drawScale($("scale"), trace);
}

function goTo(frame) {
  state.frame = Math.max(0, Math.min(frame, state.frames.length));
  showFrames(state.elements, state.frames, state.frame);
  const slider = $("pass");
  slider.value = String(state.frame);
  slider.setAttribute("aria-valuetext", captionOf(state.frame));
  $("back").disabled = state.frame === 0;
  $("forth").disabled = state.frame === state.frames.length;
  focusView();
}

function captionOf(count) {
  const { trace, frames } = state;
  const blocks = trace.block_starts ? trace.block_starts.length : 1;
  if (!frames.length) return "Nothing was written.";
  if (count === 0) {
    const parts = blocks > 1 ? ` They are filled in ${blocks} blocks, one after the other; within a block, in any order.` : "";
    return `All is blank. These ${trace.tokens.length} blanks become the answer.${parts}`;
  }
  if (count === frames.length) {
    const how = trace.cut ? `The first ${trace.tokens.length} of ${trace.length} tokens are shown. ` : "";
    return `${how}All is written: ${trace.tokens.length} tokens in ${frames.length} steps. Choose a word to see how it came about; at a ●, also what student and teacher would write.`;
  }
  const { block, at } = frames[count - 1];
  const where = `Step ${count} of ${frames.length}${blocks > 1 ? ` (block ${block + 1} of ${blocks})` : ""}`;
  if (at.length > 1) return `${where}: writes ${at.length} words at once, ${at.slice(0, 6).map((i) => quoted(trace.tokens[i])).join(" ")}.`;
  const i = at[0];
  const { order } = runOf(state.index);
  const sure = percent(trace.confidence[i]);
  const wrote = `${where}: writes ${quoted(trace.tokens[i])} at position ${i + 1}.`;
  // The least sure one is certain, so all others are.
  const here = blocks > 1 ? " in this block" : "";
  if (order === "high_entropy" && trace.entropy[i] < CERTAIN) return `${wrote} All blanks that are left${here} are certain by now.`;
  return ORDERS[order] ? `${wrote} ${ORDERS[order](`open blanks${here}`)}: its best guess had ${sure}.` : `${wrote} Its best guess had ${sure}.`;
}

// What is seen when a word is looked at. Where it was taught, what is on the right is dashed: neither model saw it.
function focusView() {
  const at = state.hover ?? state.pinned;
  const taught = at !== null && state.frame === state.frames.length && state.place.has(at);
  state.elements.forEach((element, i) => {
    element.classList.toggle("gone", taught && i > at);
    element.classList.toggle("target", at === i);
    element.setAttribute("aria-selected", String(state.pinned === i));
  });
  $("hidden-key").hidden = !taught;
  $("caption").textContent = taught ? `● Position ${at + 1}, where it was taught. ${capital(whoSees())} saw what is on the left of it; what is dashed was hidden.` : captionOf(state.frame);
  drawDetail(at);
}

function pin(at, { focus = false } = {}) {
  stop();
  if (state.elements[state.pinned ?? 0]) state.elements[state.pinned ?? 0].tabIndex = -1;
  state.pinned = at;
  const element = state.elements[at ?? 0];
  if (element) element.tabIndex = 0;
  if (focus && element) element.focus();
  if (at !== null) goTo(state.frames.length);
  else focusView();
}

function drawWhy() {
  const trace = state.trace;
  const [, title, meaning] = ROUTES[trace.route] ?? ["", trace.route, ""];
  const table = make("table", "why-table");
  const line = (who, what, right) => {
    const row = make("tr");
    row.append(make("td", "", who), make("td", "words mono", what === null || what === "" ? "no answer found" : what));
    const mark = right === null || right === undefined ? "" : right ? "✓ right" : "✗ wrong";
    row.append(make("td", right ? "right-answer" : "wrong-answer", mark));
    return row;
  };
  table.append(line("Right answer", trace.expected, null), line("Student’s", trace.student_extracted, trace.student_right), line("Teacher’s", trace.teacher_extracted, trace.teacher_right));
  const name = make("p", "");
  name.append(make("span", "route-name", title));
  const run = runOf(state.index);
  const judged = {
    final: "Only the final answer is judged, not the steps before it: a right answer counts as right, even after a wrong step.",
    whole: "The whole answer is judged: one wrong step makes it wrong, whatever its end says.",
    own: `The run’s own verifier, ${run.verifier}, has judged both.`,
  }[run.judges];
  const parts = [table, make("p", "small", judged), name, make("p", "small", run.routed ? meaning : "This run teaches every question alike, whoever is right.")];
  const more = make("details");
  more.append(make("summary", "small", "What the teacher wrote"), make("p", "said", trace.teacher_answer ?? "not kept"));
  if (trace.reference) more.append(make("p", "small", "The reference solution"), make("p", "said", trace.reference));
  more.append(make("p", "small", `In the files of a run, this case is called ${trace.route}.`));
  put($("why"), ...parts, more);
}

function odds(title, classes, flat, written) {
  const box = make("div", classes);
  const grid = make("div", "odds");
  for (let k = 0; k < flat.length; k += 2) {
    const bar = make("span", "bar");
    const fill = make("i");
    fill.style.width = `${100 * flat[k + 1]}%`;
    bar.append(fill);
    const word = make("span", flat[k] === written ? "word wrote" : "word", visible(flat[k]));
    word.title = flat[k];
    grid.append(word, bar, make("span", "much", percent(flat[k + 1])));
  }
  box.append(make("h4", "", title), grid);
  return box;
}

// What a model saw around a blank: a label, and below it the words; null for other blanks.
function seen(label, left, right, cutLeft, cutRight) {
  const line = make("p", "prefix");
  const words = (all) => all.map((word) => (word === null ? make("span", "hole", "▢") : document.createTextNode(word)));
  line.append(cutLeft ? "… " : "", ...words(left), make("b", "", "?"), ...words(right), cutRight ? " …" : "");
  const head = make("p", "seen");
  head.append(make("b", "", label));
  return [head, line];
}

// The response as it was before a word was written: blanks for what came later.
function seenWhenWritten(at) {
  const { trace, stepOf } = state;
  const from = Math.max(0, at - AROUND);
  const to = Math.min(trace.tokens.length, at + AROUND + 1);
  const then = (i) => (stepOf[i] < stepOf[at] ? visible(trace.tokens[i]) : null);
  const words = (begin, end) => Array.from({ length: end - begin }, (_, k) => then(begin + k));
  return seen("When it wrote this, it saw", words(from, at), words(at + 1, to), from > 0, to < trace.tokens.length);
}

// Who has only the left of a ● in view there.
function whoSees() {
  if (!state.trace.teacher_alternatives) return "the student";
  return runOf(state.index).view === "target_masked" ? "the teacher" : "both models";
}

function seenWhenTaught(at) {
  const { trace } = state;
  const from = Math.max(0, at - 2 * AROUND);
  const left = trace.tokens.slice(from, at).map(visible);
  return seen(`When it is taught, ${whoSees()} see${whoSees() === "both models" ? "" : "s"}`, left, [], from > 0, false);
}

// The numbers behind a position, for those who want them.
function figuresOf(at, k) {
  const { trace } = state;
  const figures = make("div", "figures");
  const figure = (name, value, meaning) => figures.append(make("span", "", name), make("b", "", value), make("span", "meaning", meaning));
  const { block, pass } = state.frames[state.stepOf[at] - 1];
  const blocks = trace.block_starts ? `of block ${block + 1}; ` : "";
  figure("Pass", String(pass), `${blocks}passes that only wrote behind the end of the answer are not among the steps`);
  figure("Uncertainty (entropy)", number(trace.entropy[at]), `nats, when it was written: 0 is certain, and a fork ◆ has ${data.fork} or more, as two equally likely words`);
  if (k !== undefined && trace.kl) figure("Distance to the teacher (KL)", number(trace.kl[k]), "nats; 0 if both models have the same odds. Training is to make it smaller");
  if (k !== undefined && trace.contrast) {
    figure("What the left tells (D)", number(trace.contrast[k]), `nats: the student’s entropy here is ${number(trace.mask_entropy[k])} with all blank, ${number(trace.left_entropy[k])} with the left`);
    figure("Confidence", percent(trace.left_confidence[k]), "the student’s best guess, given the left");
  }
  const more = make("details");
  more.open = state.details;
  more.addEventListener("toggle", () => { state.details = more.open; });
  more.append(make("summary", "small", "Details"), figures);
  if (k !== undefined && trace.contrast) more.append(make("p", "small", "A small part of the loss ranks positions: where the left tells the student much (a large D), it should be less sure of its best guess than where the left tells it little."));
  if (k !== undefined && !trace.contrast) more.append(make("p", "small", "This trace is of a version that did not keep KL, D and confidence."));
  return more;
}

function drawDetail(at) {
  const { trace, place, stepOf, frames } = state;
  const box = $("detail");
  if (at === null || at >= trace.tokens.length) {
    put(box, make("p", "small", "Choose a word of the response: point at it, tap it, or move to it with the arrow keys. Those with a ● say most."));
    return;
  }
  const head = make("p", "told-at");
  const blocks = blockEdges(trace).size;
  const inBlock = blocks ? ` (block ${frames[stepOf[at] - 1].block + 1} of ${blocks})` : "";
  head.append(make("b", "said", visible(trace.tokens[at])), document.createTextNode(` at position ${at + 1}${inBlock}, written in step ${stepOf[at]} of ${frames.length}, with ${percent(trace.confidence[at])} for its best guess${trace.entropy[at] >= data.fork ? ": a fork ◆" : ""}`));
  const parts = [head, ...seenWhenWritten(at)];
  const k = place.get(at);
  if (k === undefined) {
    const why = trace.route === "EXCLUDE" ? "Nothing is learned from this question." : "No ●: it was not drawn to be taught. The places are drawn at random, not by uncertainty, so that confident mistakes are among them, too.";
    put(box, ...parts, make("p", "small", why), figuresOf(at));
    return;
  }
  const models = make("div", "models");
  models.append(odds("Student would write", "of-student", trace.student_alternatives[k], trace.tokens[at]));
  if (trace.teacher_alternatives) models.append(odds("Teacher would write", "of-teacher", trace.teacher_alternatives[k], trace.tokens[at]));
  parts.push(...seenWhenTaught(at), models);
  const what = { CE: "The answer was right: the student learns its own word here.", GOLD: "The words are learned from the reference solution; here, only how sure the student is." };
  if (!trace.teacher_alternatives && what[trace.route]) parts.push(make("p", "small", what[trace.route]));
  put(box, ...parts, figuresOf(at, k));
}

// ---- Replay ----

function stop() {
  if (state.timer !== null) clearInterval(state.timer);
  state.timer = null;
  $("play").textContent = "Play";
}

// Milliseconds a frame: slow enough to follow, and never longer than half a minute in all.
const pace = (frames) => Math.max(30, Math.min(420, 30000 / Math.max(1, frames)));

function play() {
  if (state.timer !== null) return stop();
  state.pinned = state.hover = null;
  if (state.frame === state.frames.length) goTo(0);
  $("play").textContent = "Pause";
  state.timer = setInterval(() => {
    goTo(state.frame + 1);
    if (state.frame === state.frames.length) stop();
  }, pace(state.frames.length));
}

// ---- Keyboard and pointer ----

function arrow(event) {
  const at = Number(event.target.dataset.at);
  if (Number.isNaN(at)) return;
  const sorted = [...state.place.keys()].sort((a, b) => a - b);
  const moves = {
    ArrowRight: () => at + 1,
    ArrowLeft: () => at - 1,
    ArrowDown: () => sorted.find((i) => i > at),
    ArrowUp: () => sorted.filter((i) => i < at).pop(),
    Home: () => 0,
    End: () => state.elements.length - 1,
    Enter: () => at,
    " ": () => at,
  };
  if (event.key === "Escape") {
    pin(null);
    return;
  }
  if (!moves[event.key]) return;
  event.preventDefault();
  const to = moves[event.key]();
  if (to !== undefined && state.elements[to]) pin(to, { focus: true });
}

function startViewer() {
  if (!data.traces.length) {
    $("no-traces").hidden = false;
    return;
  }
  $("stage").hidden = false;
  const runs = data.runs.map((run, k) => k).filter((k) => data.traces.some((row) => row.run === k));
  put($("run"), ...runs.map((k) => option(k, data.runs[k].name)));
  $("run-label").hidden = runs.length < 2;
  $("walk-start").hidden = !data.example;
  const first = data.example ? data.example.trace : 0;
  $("run").value = String(data.traces[first].run);
  fillRoutes();
  fillQuestions(first);

  $("run").addEventListener("change", () => { walkTo(-1); fillRoutes(); fillQuestions(); });
  $("route").addEventListener("change", () => { walkTo(-1); fillQuestions(state.index); });
  $("question").addEventListener("change", (event) => { walkTo(-1); show(Number(event.target.value)); });
  const neighbour = (by) => { walkTo(-1); const found = matching(); show(found[found.indexOf(state.index) + by]); };
  $("previous").addEventListener("click", () => neighbour(-1));
  $("next").addEventListener("click", () => neighbour(1));
  $("play").addEventListener("click", play);
  $("pass").addEventListener("input", (event) => { stop(); state.pinned = null; goTo(Number(event.target.value)); });
  $("back").addEventListener("click", () => { stop(); state.pinned = null; goTo(state.frame - 1); });
  $("forth").addEventListener("click", () => { stop(); state.pinned = null; goTo(state.frame + 1); });
  const tokens = $("tokens");
  const at = (event) => (event.target.dataset && event.target.dataset.at !== undefined ? Number(event.target.dataset.at) : null);
  tokens.addEventListener("click", (event) => { const i = at(event); if (i !== null) { state.hover = null; pin(i); } });
  tokens.addEventListener("focusin", (event) => { const i = at(event); if (i !== null && i !== state.pinned && event.target.matches(":focus-visible")) pin(i); });
  tokens.addEventListener("keydown", arrow);
  tokens.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse" || state.timer !== null || state.frame < state.frames.length) return;
    state.hover = at(event);
    focusView();
  });
  tokens.addEventListener("pointerleave", () => { if (state.hover !== null) { state.hover = null; focusView(); } });
  $("walk-start").addEventListener("click", startWalk);
  $("walk").addEventListener("keydown", (event) => { if (event.key === "Escape") walkTo(-1); });
  $("walk-back").addEventListener("click", () => walkTo(state.walk - 1));
  $("walk-next").addEventListener("click", () => walkTo(state.walk + 1));
  $("walk-close").addEventListener("click", () => walkTo(-1));
}
