// Data and tokens of a report's page. The scripts of the page are one, in the order that page.py gives; all texts of data
// and models are set through textContent, never as markup.
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

// What a token of chat markup says: `<|im_end|>` is an end. Null for words.
const ENDS = ["im_end", "endoftext", "eot_id", "end_of_text", "eos"];
function markup(token) {
  const name = /^<\|([^|>]+)\|>$/.exec(token)?.[1] ?? (token === "</s>" ? "eos" : null);
  return ENDS.includes(name) ? "end" : name;
}
// A token as people can see it: blanks and line ends have no shape of their own.
const visible = (token) => markup(token) ?? (token === "" ? "∅" : token.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ +$/, (s) => "␣".repeat(s.length)));
const quoted = (token) => `“${visible(token)}”`;
const percent = (p) => (p > 0 && p < 0.01 ? "<1%" : p > 0.99 && p < 1 ? ">99%" : `${Math.round(100 * p)}%`);
const number = (value) => (value === 0 || value >= 0.001 ? value.toFixed(value < 0.1 ? 3 : 2) : "<0.001");

// A prompt, with the markup of chats as small grey signs.
function drawPrompt(place, prompt) {
  const parts = (prompt ?? "").split(/(<\|im_start\|>\w+\n?|<\|[^|>]+\|>)/);
  put(place, ...parts.filter(Boolean).map((part) => {
    const role = /^<\|im_start\|>(\w+)/.exec(part)?.[1] ?? markup(part);
    return role === null ? document.createTextNode(part) : make("span", "chip", role);
  }));
}

// ---- Steps and colours ----

// The frames of a replay, which people see as steps 1 to n: which positions were written in which pass of which block.
// A pass that only wrote behind the end of the response is none of them.
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

// Upper bounds of entropy, in nats, of the shades from quiet to strong; the same as in the playground.
const SHADES = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2];
let colouring = "entropy";

function shadesOf(trace, frames) {
  const shades = new Array(trace.tokens.length).fill(0);
  for (const frame of frames) {
    for (const i of frame.at) {
      shades[i] = colouring === "pass" ? Math.round(7 * (1 - frame.share)) : SHADES.filter((bound) => trace.entropy[i] >= bound).length;
    }
  }
  return shades;
}

// Where blocks begin, if there are several: each position with the number of its block.
const blockEdges = (trace) => new Map((trace.block_starts?.length > 1 ? trace.block_starts : []).map((at, k) => [at, k + 1]));

function blocksNote(place, trace) {
  const count = blockEdges(trace).size;
  place.hidden = !count;
  place.textContent = `Passes restart in every block (${count} here, one after the other); the small numbers count on.`;
}

function drawScale(place, trace) {
  const of = blockEdges(trace).size ? " of a block" : "";
  const shades = [...Array(8).keys()].reverse().map((k) => make("i", `h${k}`));
  const words = colouring === "pass" ? [`first step${of}`, `last step${of}`] : ["torn", "sure"];
  put(place, make("span", "", words[0]), ...shades, make("span", "", words[1]));
  place.setAttribute("aria-label", `Colours from ${words[0]} to ${words[1]}`);
}

// Token elements of a response, in a container. Only the response that is shown is ever built.
function drawTokens(place, trace, frames, supervised) {
  const shades = shadesOf(trace, frames);
  const nth = [];
  frames.forEach((frame, k) => frame.at.forEach((i) => { nth[i] = k + 1; }));
  const all = document.createDocumentFragment();
  const edges = blockEdges(trace);
  const elements = trace.tokens.map((token, i) => {
    const element = make("span", `token h${shades[i]}`);
    element.append(make("span", markup(token) === null ? "text" : "text special", visible(token)), make("small", "", String(nth[i])));
    if (trace.entropy[i] >= data.fork) element.classList.add("fork");
    if (supervised && supervised.has(i)) element.classList.add("sup");
    // A block's sign stays on the line of its first word.
    if (edges.has(i)) all.append(withEdge(edges.get(i), element));
    else all.append(element);
    if (token.includes("\n")) all.append(make("br"));
    return element;
  });
  put(place, all);
  return elements;
}

function withEdge(block, element) {
  const edge = make("span", "edge");
  edge.setAttribute("aria-hidden", "true");
  edge.append(make("small", "", "block"), make("b", "", String(block)));
  const both = make("span", "begin");
  both.append(edge, element);
  return both;
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
