// The fork viewer of a report. All texts of data and models are set through textContent, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const parsed = (id) => JSON.parse($(id).textContent);
const data = parsed("page-data");

// ---- Small helpers ----

function make(tag, classes, text) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text !== undefined && text !== null) element.textContent = text;
  return element;
}

function put(parent, ...children) {
  parent.replaceChildren(...children);
  return parent;
}

function option(value, text) {
  const element = make("option", "", text);
  element.value = value;
  return element;
}

// A token as people can see it: blanks and line ends have no shape of their own.
const visible = (token) => (token === "" ? "∅" : token.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ +$/, (s) => "␣".repeat(s.length)));
const quoted = (token) => `“${visible(token)}”`;
const percent = (p) => (p > 0 && p < 0.01 ? "<1%" : p > 0.99 && p < 1 ? ">99%" : `${Math.round(100 * p)}%`);
const number = (value) => (value === 0 || value >= 0.001 ? value.toFixed(value < 0.1 ? 3 : 2) : "<0.001");

// ---- Passes and colours ----

// The frames of a replay: which positions were written in which pass of which block.
function framesOf(trace) {
  const starts = trace.block_starts || (trace.tokens.length ? [0] : []);
  const frames = [];
  starts.forEach((start, block) => {
    const end = block + 1 < starts.length ? starts[block + 1] : trace.tokens.length;
    const passes = new Map();
    for (let i = start; i < end; i++) {
      const pass = trace.commit_pass[i];
      if (!passes.has(pass)) passes.set(pass, []);
      passes.get(pass).push(i);
    }
    const ordered = [...passes].sort((a, b) => a[0] - b[0]);
    ordered.forEach(([pass, at], k) => frames.push({ block, pass, at, share: ordered.length > 1 ? k / (ordered.length - 1) : 0 }));
  });
  return frames;
}

// Upper bounds of entropy, in nats, of the shades from quiet to strong.
const SHADES = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2];
let colouring = "pass";

function shadesOf(trace, frames) {
  const shades = new Array(trace.tokens.length).fill(0);
  for (const frame of frames) {
    for (const i of frame.at) {
      shades[i] = colouring === "pass" ? Math.round(7 * (1 - frame.share)) : SHADES.filter((bound) => trace.entropy[i] >= bound).length;
    }
  }
  return shades;
}

function drawScale(place) {
  const steps = [...Array(8).keys()].map((k) => make("i", `h${k}`));
  const words = colouring === "pass" ? ["last pass", "first pass"] : ["sure, 0 nats", "torn, 2 nats"];
  put(place, make("span", "", words[0]), ...steps, make("span", "", words[1]));
  place.setAttribute("aria-label", `Colours from ${words[0]} to ${words[1]}`);
}

// Token elements of a response, in a container. Only the response that is shown is ever built.
function drawTokens(place, trace, frames, supervised) {
  const shades = shadesOf(trace, frames);
  const all = document.createDocumentFragment();
  const elements = trace.tokens.map((token, i) => {
    const element = make("span", `token h${shades[i]}`, visible(token));
    if (trace.entropy[i] >= data.fork) element.classList.add("fork");
    if (supervised && supervised.has(i)) element.classList.add("sup");
    all.append(element);
    if (token.includes("\n")) all.append(make("br"));
    return element;
  });
  put(place, all);
  return elements;
}

// Shows a response after so many of its frames.
function showFrames(elements, frames, count) {
  const open = new Set();
  frames.slice(count).forEach((frame) => frame.at.forEach((i) => open.add(i)));
  const now = new Set(count > 0 && count < frames.length ? frames[count - 1].at : []);
  elements.forEach((element, i) => {
    element.classList.toggle("blank", open.has(i));
    element.classList.toggle("now", now.has(i));
  });
}

// ---- The viewer ----

const state = { index: -1, trace: null, frames: [], elements: [], frame: 0, pinned: null, hover: null, timer: null, walk: -1 };
const ROUTES = {
  CE: ["Both right: keep it", "The student’s own answer works. It learns its own words once more; the teacher says nothing."],
  LEFTOPD: ["Only the teacher right: teach on the left", "The student is wrong, and the teacher knows better. At each ● position, the student learns the teacher’s odds, with both seeing only what is on the left."],
  GOLD: ["Both wrong: use the reference", "The teacher does not know either. The student learns from a written solution instead, if there is one."],
  EXCLUDE: ["Only the student right: leave it alone", "A teacher that is wrong here would do harm. The question is left out of this update."],
};
const ORDERS = {
  high_entropy: "the one it was least sure of",
  low_entropy: "the one with the lowest entropy",
  confidence: "the one it was surest of",
  left_to_right: "the leftmost one",
  random: "a random one",
};

function matching() {
  const run = Number($("run").value);
  const route = $("route").value;
  return data.traces.map((row, k) => k).filter((k) => data.traces[k].run === run && (route === "" || data.traces[k].route === route));
}

function fillRoutes() {
  const run = Number($("run").value);
  const rows = data.traces.filter((row) => row.run === run);
  const counts = Object.keys(ROUTES).map((route) => [route, rows.filter((row) => row.route === route).length]);
  put($("route"), option("", `all (${rows.length})`), ...counts.filter(([, count]) => count).map(([route, count]) => option(route, `${route} (${count})`)));
}

function fillQuestions(wanted) {
  const found = matching();
  const groups = new Map();
  found.forEach((k) => {
    const step = data.traces[k].step;
    if (!groups.has(step)) groups.set(step, make("optgroup"));
    groups.get(step).label = `update ${step}`;
    groups.get(step).append(option(k, `${data.traces[k].route}  ${data.traces[k].label}`));
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
  $("prompt").textContent = state.trace.prompt;
  $("lab-note").hidden = data.runs[data.traces[index].run].verifier !== "lab";
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
  const frameAt = [];
  state.frames.forEach((frame) => frame.at.forEach((i) => { frameAt[i] = frame; }));
  state.frameAt = frameAt;
  state.elements.forEach((element, i) => {
    element.setAttribute("role", "option");
    element.tabIndex = i === (state.pinned ?? 0) ? 0 : -1;
    element.dataset.at = String(i);
    const marks = `${trace.entropy[i] >= data.fork ? ", fork" : ""}${place.has(i) ? ", supervised" : ""}`;
    element.setAttribute("aria-label", `${visible(trace.tokens[i])}, position ${i + 1}, pass ${frameAt[i].pass}, entropy ${number(trace.entropy[i])}${marks}`);
  });
  if (!trace.tokens.length) put($("tokens"), make("span", "soft", "The response is empty."));
  drawScale($("scale"));
}

function goTo(frame) {
  state.frame = Math.max(0, Math.min(frame, state.frames.length));
  showFrames(state.elements, state.frames, state.frame);
  const slider = $("pass");
  slider.value = String(state.frame);
  const told = captionOf(state.frame);
  slider.setAttribute("aria-valuetext", told);
  $("caption").textContent = told;
  $("back").disabled = state.frame === 0;
  $("forth").disabled = state.frame === state.frames.length;
  focusView();
}

function captionOf(count) {
  const { trace, frames } = state;
  const blocks = trace.block_starts ? trace.block_starts.length : 1;
  if (!frames.length) return "Nothing was written.";
  if (count === 0) return `${trace.length} blanks. Nothing is written yet.`;
  if (count === frames.length) {
    const how = trace.cut ? `The first ${trace.tokens.length} of ${trace.length} tokens are shown. ` : "";
    return `${how}All ${trace.length} tokens are written, in ${frames.length} passes${blocks > 1 ? ` over ${blocks} blocks` : ""}. Choose one to see what it was written from, and what the teacher says.`;
  }
  const { block, pass, at } = frames[count - 1];
  const where = blocks > 1 ? `Block ${block + 1} of ${blocks}, pass ${pass}` : `Pass ${pass}`;
  if (at.length > 1) return `${where}: writes ${at.length} words at once, ${at.slice(0, 6).map((i) => quoted(trace.tokens[i])).join(" ")}.`;
  const i = at[0];
  const chosen = ORDERS[data.runs[data.traces[state.index].run].order];
  const why = chosen ? ` Of the open blanks it was ${chosen}` : " Its best guess";
  const sure = `: its best guess had ${percent(trace.confidence[i])}, the entropy is ${number(trace.entropy[i])} nats.`;
  return `${where}: writes ${quoted(trace.tokens[i])} at position ${i + 1}.${why}${sure}`;
}

// What is seen when a position is looked at: the left stays, the right fades.
function focusView() {
  const at = state.hover ?? state.pinned;
  const whole = state.frame === state.frames.length;
  state.elements.forEach((element, i) => {
    element.classList.toggle("gone", whole && at !== null && i > at);
    element.classList.toggle("target", at === i);
    element.setAttribute("aria-selected", String(state.pinned === i));
  });
  drawDetail(at);
}

function pin(at, { focus = false, whole = true } = {}) {
  stop();
  if (state.elements[state.pinned ?? 0]) state.elements[state.pinned ?? 0].tabIndex = -1;
  state.pinned = at;
  const element = state.elements[at ?? 0];
  if (element) element.tabIndex = 0;
  if (focus && element) element.focus();
  if (at !== null && whole) goTo(state.frames.length);
  else focusView();
}

function drawWhy() {
  const trace = state.trace;
  const [title, meaning] = ROUTES[trace.route] || [trace.route, ""];
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
  name.append(make("span", "route-name", title), make("span", "soft", `  ${trace.route}`));
  const parts = [table, name, make("p", "small", data.runs[data.traces[state.index].run].routed ? meaning : "This run teaches every question alike; the route is only noted.")];
  const more = make("details");
  more.append(make("summary", "small", "What the teacher wrote"), make("p", "said", trace.teacher_answer ?? "not kept"));
  if (trace.reference) more.append(make("p", "small", "The reference"), make("p", "said", trace.reference));
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

// What D says at a supervised position. It is never below 0: where the left makes the student less sure, it says nothing.
function dOf(trace, k) {
  const told = `its entropy is ${number(trace.mask_entropy[k])} with all blank, ${number(trace.left_entropy[k])} with the left`;
  return trace.contrast[k] > 0 ? `nats that the left tells the student: ${told}` : `the left does not make the student surer: ${told}`;
}

function drawDetail(at) {
  const { trace, place } = state;
  const box = $("detail");
  if (at === null || at >= trace.tokens.length) {
    put(box, make("p", "small", "Choose a word of the response: point at it, tap it, or move to it with the arrow keys."));
    return;
  }
  const head = make("p", "told-at");
  head.append(make("b", "said", visible(trace.tokens[at])), document.createTextNode(` at position ${at + 1}`));
  const frame = state.frameAt[at];
  const commit = make("p", "small", `Written in pass ${frame.pass} of its block, from a best guess of ${percent(trace.confidence[at])} and an entropy of ${number(trace.entropy[at])} nats${trace.entropy[at] >= data.fork ? ": a fork ◆" : ""}.`);
  if (!place.has(at)) {
    const why = trace.route === "EXCLUDE" ? "Nothing of this question is supervised." : "It was not drawn for supervision. Positions are drawn at random, not by uncertainty, so that a confident mistake can be corrected, too.";
    put(box, head, commit, make("p", "small", why));
    return;
  }
  const k = place.get(at);
  const prefix = make("p", "prefix");
  const left = trace.tokens.slice(Math.max(0, at - 40), at).join("");
  prefix.append(document.createTextNode(`${at > 40 ? "… " : ""}${left}`), make("b", "", "▢"));
  const parts = [head, commit, make("p", "small", trace.teacher_alternatives ? "● Both models see the question and this, nothing on the right:" : "● The student sees the question and this, nothing on the right:"), prefix];
  const models = make("div", "models");
  models.append(odds("Student would write", "of-student", trace.student_alternatives[k], trace.tokens[at]));
  if (trace.teacher_alternatives) models.append(odds("Teacher would write", "of-teacher", trace.teacher_alternatives[k], trace.tokens[at]));
  parts.push(models);
  if (!trace.teacher_alternatives) {
    const what = { CE: "The answer was right: the student learns its own word here.", GOLD: "The words are learned from the reference; here only the confidence is ranked." };
    parts.push(make("p", "small", what[trace.route] || ""));
  }
  const figures = make("div", "figures");
  const figure = (name, value, meaning) => figures.append(make("span", "", name), make("b", "", value), make("span", "", meaning));
  if (trace.kl) figure("KL", number(trace.kl[k]), "nats between the two; training makes it smaller");
  if (trace.contrast) figure("D", number(trace.contrast[k]), dOf(trace, k));
  if (trace.left_confidence) figure("Confidence", percent(trace.left_confidence[k]), "the student’s best guess here; the larger D is, the lower it should rank");
  if (!trace.contrast) figures.append(make("span", "", "This trace is of a version that did not keep KL, D and confidence."));
  parts.push(figures);
  put(box, ...parts);
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

// ---- The guided example ----

function walkSteps() {
  const { fork, position } = data.example;
  const trace = state.trace;
  const k = state.place.get(position);
  const student = trace.student_alternatives[k];
  const teacher = trace.teacher_alternatives[k];
  const forkFrame = state.frames.findIndex((frame) => frame.at.includes(fork)) + 1;
  const others = position === fork ? "" : ` This is another place than the fork: where to teach is drawn at random.`;
  return [
    [() => { pin(null); goTo(0); }, `The student gets a question, and ${trace.length} blanks. It may fill them in any order${state.frames.at(-1).block > 0 ? ", block by block" : ""}.`],
    [() => { pin(null); goTo(forkFrame); }, `Face the fork first: at ${quoted(trace.tokens[fork])} it was most torn, with ${percent(trace.confidence[fork])} for its best guess. In training it must decide that early, while what comes after it is still blank. Written confident-first, it would be put off until the student’s own later words left little choice.`],
    [() => { pin(null); goTo(state.frames.length); }, `The rest was written around that choice. The answer ${quoted(trace.student_extracted ?? "")} is wrong; the right one is ${quoted(trace.expected ?? "")}. The teacher, asked on its own, answers ${quoted(trace.teacher_extracted ?? "")}. So on this question the teacher teaches.`],
    [() => pin(position), `Teach on the left: look at ${quoted(trace.tokens[position])}, position ${position + 1}. What is right of it fades, because the teacher cannot see it, so the student may not either. Same question, same left: any difference is what the student does not know yet.${others}`],
    [() => pin(position), `There the student says ${quoted(student[0])} with ${percent(student[1])}; the teacher says ${quoted(teacher[0])} with ${percent(teacher[1])}. Training moves the student’s odds towards the teacher’s. It never replaces a word: the student goes on from its own.`],
    [() => { pin(null); }, "That is ForkLeft: face the fork first, teach on the left. After training the student writes as it always did, its most confident words first. Below you see what has changed."],
  ];
}

function walkTo(step) {
  state.walk = step;
  $("walk").hidden = step < 0;
  $("walk-start").hidden = step >= 0 || !data.example;
  if (step < 0) return;
  const steps = walkSteps();
  steps[step][0]();
  $("walk-text").textContent = steps[step][1];
  $("walk-count").textContent = `${step + 1} of ${steps.length}`;
  $("walk-back").disabled = step === 0;
  $("walk-next").disabled = step === steps.length - 1;
}

function startWalk() {
  const index = data.example.trace;
  $("run").value = String(data.traces[index].run);
  fillRoutes();
  fillQuestions(index);
  walkTo(0);
  $("walk-next").focus({ preventScroll: true });
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
  if (data.example) pin(data.example.position, { whole: false });

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
  $("walk-back").addEventListener("click", () => walkTo(state.walk - 1));
  $("walk-next").addEventListener("click", () => walkTo(state.walk + 1));
  $("walk-close").addEventListener("click", () => walkTo(-1));
}

// ---- Before and after ----

const orders = { cells: [], share: 100, timer: null, rows: [] };
const COLUMNS = [["high_entropy", "most uncertain first, as in training"], ["confidence", "most confident first, as in use"]];

function startOrders() {
  orders.rows = data.showcase;
  if (!orders.rows.length) return;
  $("orders").hidden = false;
  orders.rows.forEach((group, k) => $("shown").append(option(k, group.label)));
  // The first to be seen is one that was learned, if there is one; all others are in the list.
  $("shown").value = String(Math.max(0, orders.rows.findIndex((group) => group.learned)));
  $("shown").addEventListener("change", drawOrders);
  $("orders-pass").addEventListener("input", (event) => { stopOrders(); showOrders(Number(event.target.value)); });
  $("orders-play").addEventListener("click", playOrders);
  drawOrders();
}

function drawOrders() {
  stopOrders();
  const group = orders.rows[Number($("shown").value)];
  const rows = parsed(group.block);
  $("shown-prompt").textContent = rows[0].prompt;
  const steps = [...new Set(rows.map((row) => row.step))].sort((a, b) => a - b);
  const wanted = steps.length > 1 ? [steps[0], steps[steps.length - 1]] : steps;
  orders.cells = [];
  const boxes = [];
  for (const step of wanted) {
    for (const [order, told] of COLUMNS) {
      const row = rows.find((one) => one.step === step && one.order === order);
      if (!row) continue;
      const box = make("div", "cell");
      const when = step === 0 ? "Before training" : `After ${step} updates`;
      const verdict = make("p", row.student_right ? "right-answer" : "wrong-answer", `${row.student_right ? "✓" : "✗"} answers ${quoted(row.student_extracted ?? "nothing")}`);
      verdict.append(make("span", "soft", row.student_right ? "" : `, right is ${quoted(row.expected ?? "")}`));
      const place = make("div", "tokens");
      const frames = framesOf(row);
      const heading = make("h3", "", when);
      heading.append(make("span", "soft", `, ${told}`));
      box.append(heading, verdict, place);
      orders.cells.push({ row, frames, place, elements: drawTokens(place, row, frames, null) });
      boxes.push(box);
    }
  }
  put($("cells"), ...boxes);
  showOrders(100);
}

function showOrders(share) {
  orders.share = share;
  $("orders-pass").value = String(share);
  for (const cell of orders.cells) showFrames(cell.elements, cell.frames, Math.round((share / 100) * cell.frames.length));
  const told = share === 100 ? "all passes" : `${share}% of the passes`;
  $("orders-told").textContent = told;
  $("orders-pass").setAttribute("aria-valuetext", told);
}

function stopOrders() {
  if (orders.timer !== null) clearInterval(orders.timer);
  orders.timer = null;
  $("orders-play").textContent = "Play";
}

function playOrders() {
  if (orders.timer !== null) return stopOrders();
  const frames = Math.max(1, ...orders.cells.map((cell) => cell.frames.length));
  if (orders.share >= 100) showOrders(0);
  $("orders-play").textContent = "Pause";
  let exact = orders.share;
  orders.timer = setInterval(() => {
    exact = Math.min(100, exact + 100 / frames);
    showOrders(Math.round(exact));
    if (exact >= 100) stopOrders();
  }, pace(frames));
}

// ---- The page ----

function startTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const label = () => { $("theme").textContent = isDark() ? "Light" : "Dark"; };
  $("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; label(); });
  dark.addEventListener("change", label);
  label();
}

for (const choice of document.getElementsByName("colour")) {
  choice.addEventListener("change", () => {
    colouring = choice.value;
    if (state.trace) { const pinned = state.pinned; draw(); state.pinned = pinned; goTo(state.frame); }
    if (orders.cells.length) { const share = orders.share; drawOrders(); showOrders(share); }
  });
}
startTheme();
startViewer();
startOrders();
