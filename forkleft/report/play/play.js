// The playground's page. What comes from models or people reaches the page as textContent only.

const byId = (id) => document.getElementById(id);
const form = byId("form");
// Below the choice of an order: a list of these would be cut where the page is narrow.
const ORDER_WORDS = {
  "": "the order of the decoding",
  confidence: "surest position first",
  high_entropy: "most uncertain first, as in training",
  low_entropy: "least uncertain first",
  left_to_right: "leftmost first",
  random: "in a random order",
};
// Upper bounds of entropy, in nats, of the shades 0 to 6; the same as in the report.
const ENTROPIES = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2];
const LAST_SHADE = ENTROPIES.length;
const OPTIONAL = ["order", "passes", "threshold"];
const NUMBERS = ["passes", "threshold", "temperature", "seed", "max_new_tokens"];

let choices = null;
let sides = [];
let shown = 0; // the pass that is shown
let playing = false;
let timer = 0;
let written = ""; // what to say when all that was written has been shown
let request = null; // an AbortController while the server writes

// ---- One side: what a model has written so far.

class Side {
  constructor(model) {
    const article = byId("side").content.firstElementChild.cloneNode(true);
    const find = (name) => article.querySelector(name);
    this.parts = { box: find(".response"), detail: find(".detail"), state: find(".state"),
      verdict: find(".verdict"), error: find(".error") };
    find("h2").textContent = model.name;
    const family = model.family ? `${model.family}, ` : "";
    find(".facts").textContent =
      `${family}blocks of ${model.block_size}, ${model.parameters.toLocaleString("en")} parameters`;
    this.parts.box.setAttribute("aria-label", `Answer of ${model.name}; the arrow keys go through its tokens`);
    this.listen();
    byId("sides").append(article);
    this.clear();
  }

  clear() {
    this.tokens = []; // by position: the pass of its commit, its texts by pass, entropy, confidence
    this.lengths = [0]; // by pass
    this.end = this.verdict = this.error = null;
    this.current = -1;
    this.parts.box.replaceChildren();
    this.parts.detail.textContent = "";
    this.show(0);
  }

  get passes() { return this.lengths.length - 1; }

  take(event) {
    if (event.kind === "pass") {
      this.lengths.push(event.length);
      for (const [place, text, entropy, special] of event.cells) {
        const token = this.tokens[place] ??= { pass: event.pass, texts: [], entropy, special: Boolean(special) };
        token.texts.push([event.pass, text]);
      }
    } else if (event.kind === "end") {
      this.end = event;
      event.confidence.forEach((value, place) => { this.tokens[place].confidence = value; });
    } else if (event.kind === "verdict") {
      this.verdict = event;
    } else if (event.kind === "error") {
      this.error = event.message;
    }
  }

  // Draw the response as it was after a pass.
  show(pass) {
    const at = Math.min(pass, this.passes);
    const { box } = this.parts;
    const length = this.lengths[at];
    while (box.children.length > length) box.lastElementChild.remove();
    while (box.children.length < length) box.append(document.createElement("span"));
    let masked = 0;
    for (let place = 0; place < length; place++) {
      const token = this.tokens[place];
      const open = !token || token.pass > at;
      masked += open;
      this.draw(box.children[place], place, open ? null : token, pass);
    }
    this.tell(at, length, masked);
  }

  draw(cell, place, token, pass) {
    const dropped = this.end !== null && place >= this.end.kept;
    const classes = ["cell"];
    let text = "", shade = "";
    if (token === null) {
      classes.push("mask");
    } else {
      const version = token.texts.findLast(([since]) => since <= pass);
      text = dropped && token.special ? "" : version[1].replaceAll("\n", "↵\n");
      shade = String(shadeOf(token));
      if (token.special) classes.push("special");
      if (token.pass === pass) classes.push("new");
    }
    if (dropped) classes.push("dropped");
    if (place === this.current) classes.push("current");
    const name = classes.join(" ");
    // Only what has changed is touched: answers may be long.
    if (cell.className !== name) cell.className = name;
    if (cell.textContent !== text) cell.textContent = text;
    if ((cell.dataset.shade ?? "") !== shade) {
      if (shade === "" || shade === "0") delete cell.dataset.shade;
      else cell.dataset.shade = shade;
    }
  }

  tell(at, length, masked) {
    const { state, verdict, error } = this.parts;
    const complete = at === this.passes;
    let line = at ? `after ${count(at, "pass", "passes")}: ${count(length - masked, "token")}, ${masked} masked` : "";
    if (complete && this.end) {
      const { kept, forwards, seconds, stopped } = this.end;
      line = `${count(kept, "token")} in ${count(forwards, "pass", "passes")}, written in ${seconds.toFixed(2)} s; ` +
        (stopped ? "ended with a stop token" : "cut: no more tokens were allowed");
    }
    state.textContent = line;
    verdict.hidden = !(complete && this.verdict);
    if (!verdict.hidden) {
      verdict.className = `verdict ${this.verdict.correct ? "right" : "wrong"}`;
      verdict.textContent = verdictWords(this.verdict);
    }
    error.hidden = !(complete && this.error);
    error.textContent = this.error ?? "";
  }

  // Say what is known of a token.
  point(place) {
    const token = this.tokens[place];
    this.current = place;
    if (!token || token.pass > shown) {
      this.parts.detail.textContent = place < 0 ? "" : `Position ${place + 1}: still masked.`;
    } else {
      const sure = token.confidence === undefined ? "" : `, confidence ${(100 * token.confidence).toFixed(0)}%`;
      const gone = this.end && place >= this.end.kept ? " Dropped: it stands behind the stop token." : "";
      this.parts.detail.textContent = `Position ${place + 1}: ${JSON.stringify(token.texts.at(-1)[1])}, committed in ` +
        `pass ${token.pass}, entropy ${token.entropy.toFixed(2)} nats${sure}.${gone}`;
    }
    this.show(shown);
  }

  listen() {
    const { box } = this.parts;
    const placeOf = (event) => Array.prototype.indexOf.call(box.children, event.target);
    box.addEventListener("pointerover", (event) => { if (event.target !== box) this.point(placeOf(event)); });
    box.addEventListener("click", (event) => { if (event.target !== box) this.point(placeOf(event)); });
    box.addEventListener("keydown", (event) => {
      const last = box.children.length - 1;
      const moves = { ArrowRight: this.current + 1, ArrowLeft: this.current - 1, Home: 0, End: last };
      if (last < 0 || !(event.key in moves)) return;
      event.preventDefault();
      this.point(Math.max(0, Math.min(last, moves[event.key])));
      box.children[this.current].scrollIntoView({ block: "nearest" });
    });
    box.addEventListener("focusout", () => this.point(-1));
  }
}

function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

function verdictWords(verdict) {
  if (verdict.message) return `No verdict: ${verdict.message}`;
  if (!verdict.judged) return "No verdict: the comparison took too much time or memory.";
  if (verdict.correct) return `✓ Right: ${verdict.extracted ?? ""}`;
  const expected = form.elements.expected.value.trim();
  return verdict.extracted === null ? `✗ Wrong: no answer was found, expected ${expected}`
    : `✗ Wrong: ${verdict.extracted}, expected ${expected}`;
}

function shadeOf(token) {
  if (byId("colour").value === "pass") {
    const last = Math.max(1, passes() - 1);
    return LAST_SHADE - Math.round((LAST_SHADE - 1) * (token.pass - 1) / last);
  }
  const shade = ENTROPIES.findIndex((bound) => token.entropy < bound);
  return shade < 0 ? LAST_SHADE : shade;
}

// ---- The player: shows passes as they come, and again later.

function passes() {
  return Math.max(0, ...sides.map((side) => side.passes));
}

function show(pass) {
  shown = pass;
  for (const side of sides) side.show(pass);
  const last = passes();
  const slider = byId("slider");
  slider.max = last;
  slider.value = pass;
  slider.setAttribute("aria-valuetext", `pass ${pass} of ${last}`);
  byId("where").textContent = `pass ${pass} of ${last}`;
  const byPass = byId("colour").value === "pass";
  byId("strong").textContent = byPass ? "pass 1" : "2 nats and more";
  byId("weak").textContent = byPass ? `pass ${last}` : "0";
}

function setPlaying(now) {
  playing = now;
  clearTimeout(timer);
  byId("play").textContent = now ? "❚❚" : "▶";
  byId("play").setAttribute("aria-label", now ? "Pause" : "Play");
  if (now) step();
  setButtons();
}

function step() {
  const pace = Number(byId("pace").value);
  if (shown < passes()) {
    show(pace ? shown + 1 : passes());
  } else if (request === null) {
    setPlaying(false);
    if (written) say(written);
    return;
  }
  timer = setTimeout(step, pace || 16);
}

function setButtons() {
  byId("write").disabled = request !== null || choices === null;
  byId("stop").disabled = request === null && !playing;
}

function say(text, failed = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("failed", failed);
}

// ---- Asking.

function settings() {
  const said = {};
  for (const [name, value] of new FormData(form)) {
    if (OPTIONAL.includes(name) && value === "") continue;
    said[name] = NUMBERS.includes(name) ? Number(value) : value;
  }
  return said;
}

async function ask() {
  request = new AbortController();
  const { signal } = request;
  for (const side of sides) side.clear();
  history.replaceState(null, "", linkOf(settings()));
  byId("player").hidden = byId("key").hidden = false;
  show(0);
  written = "";
  say("Asking …");
  setPlaying(true);
  try {
    const response = await fetch("write", {
      method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(settings()),
    });
    if (!response.ok) throw new Refusal((await response.json()).error);
    let done = false;
    for await (const event of events(response.body)) done = take(event) || done;
    if (!done) throw new TypeError("the stream ended early");
  } catch (error) {
    if (signal.aborted) say(`Stopped at pass ${shown}.`);
    else if (error instanceof Refusal) say(error.message, true);
    else say("The playground does not answer. Is forkleft play still running?", true);
  } finally {
    request = null;
    setButtons();
  }
}

class Refusal extends Error {}

async function* events(stream) {
  let rest = "";
  for await (const text of chunks(stream.pipeThrough(new TextDecoderStream()))) {
    const parts = (rest + text).split("\n\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part.slice(part.indexOf("data: ") + 6));
  }
}

// Not every browser can iterate over a stream.
async function* chunks(stream) {
  const reader = stream.getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
}

// Handle an event; true after the last.
function take(event) {
  if (event.kind === "waiting") {
    say(`Waiting: ${count(event.ahead, "request")} before yours.`);
  } else if (event.kind === "begin") {
    say("Writing …");
  } else if (event.kind === "done") {
    written = sides.some((side) => side.error) ? "Done, with an error." : "Done.";
    say(shown < passes() ? "Written; shown pass by pass." : written);
    return true;
  } else if (event.side === undefined) {
    throw new Refusal(event.message);
  } else {
    sides[event.side].take(event);
    // The last figures may come after the last pass was shown.
    if (event.kind !== "pass") show(shown);
  }
  return false;
}

function stop() {
  request?.abort();
  setPlaying(false);
  say(`Stopped at pass ${shown}.`);
}

// ---- Links: all settings stand behind the # of the address, which is not sent to any server.

function linkOf(said) {
  return `#${new URLSearchParams(said)}`;
}

function readLink() {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const field of form.elements) {
    const value = said.get(field.name);
    // A choice that this playground does not have keeps its default.
    const offered = field.tagName !== "SELECT" || [...field.options].some((option) => option.value === value);
    if (field.name && value !== null && offered) field.value = value;
  }
  explainOrder();
}

function explainOrder() {
  byId("order-words").textContent = ORDER_WORDS[form.elements.order.value];
}

async function copyLink() {
  history.replaceState(null, "", linkOf(settings()));
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied; it repeats these settings.");
  } catch {
    say("The link is in the address bar; it repeats these settings.");
  }
}

// ---- The start.

function fill(select, values, words = {}) {
  for (const value of values) select.append(new Option(words[value] ?? value, value));
}

async function start() {
  byId("more").open = matchMedia("(min-width: 48rem)").matches;
  for (let shade = LAST_SHADE; shade >= 0; shade--) {
    const swatch = document.createElement("span");
    if (shade) swatch.dataset.shade = shade;
    document.querySelector(".swatches").append(swatch);
  }
  try {
    choices = await (await fetch("choices")).json();
  } catch {
    say("The playground does not answer. Is forkleft play still running?", true);
    return;
  }
  fill(form.elements.decoding, choices.decodings);
  // Only the native decodings have an order of their own.
  const own = choices.decodings.length > 1 ? [""] : [];
  fill(form.elements.order, [...own, ...choices.orders], { "": "decoding’s own" });
  fill(form.elements.verifier, choices.verifiers);
  form.elements.verifier.value = choices.verifier;
  byId("decoding-field").hidden = choices.decodings.length < 2;
  const context = Math.min(...choices.models.map((model) => model.context));
  form.elements.max_new_tokens.max = context - 1;
  form.elements.max_new_tokens.value = Math.min(256, Math.floor(context / 2));
  for (const [name, value] of Object.entries(choices.example ?? {})) form.elements[name].value = value;
  sides = choices.models.map((model) => new Side(model));
  readLink();
  const { question, expected } = form.elements;
  if (choices.example && question.value === choices.example.question) {
    // The answer of the example is no answer to another question.
    const forget = () => { if (expected.value === choices.example.expected) expected.value = ""; };
    question.addEventListener("input", forget, { once: true });
  }
  byId("link").disabled = false;
  setButtons();
  say("");
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (request === null) ask();
});
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(byId("write"));
});
// A field that is wrong must be seen.
form.addEventListener("invalid", () => { byId("more").open = true; }, true);
byId("stop").addEventListener("click", stop);
byId("link").addEventListener("click", copyLink);
byId("play").addEventListener("click", () => {
  if (!playing && shown >= passes()) show(0);
  setPlaying(!playing);
});
byId("slider").addEventListener("input", (event) => {
  const pass = event.target.valueAsNumber;
  setPlaying(false);
  show(pass);
});
byId("colour").addEventListener("change", () => {
  byId("key").classList.toggle("by-pass", byId("colour").value === "pass");
  show(shown);
});
form.elements.order.addEventListener("change", explainOrder);
window.addEventListener("hashchange", readLink);
start();
