// Before and after: the same questions, written before and after training in both orders.

const orders = { cells: [], share: 100, timer: null, rows: [] };
const COLUMNS = [["high_entropy", "most uncertain first, as in training"], ["confidence", "most confident first, as in use"]];

// How many of these questions were right, as in use.
function countOrders() {
  const known = orders.rows.filter((group) => group.in_use.length === 2);
  const right = (k) => known.filter((group) => group.in_use[k]).length;
  if (!known.length) return "There are no answers from after training yet.";
  const one = known.length === 1;
  return `Of ${one ? "this question" : `these ${known.length} questions`}, written as in use, ${right(0)} ${right(0) === 1 ? "was" : "were"} right before training and ${right(1)} after.`;
}

function startOrders() {
  orders.rows = data.showcase;
  if (!orders.rows.length) return;
  $("orders").hidden = false;
  orders.rows.forEach((group, k) => $("shown").append(option(k, group.label)));
  $("orders-count").textContent = countOrders();
  $("orders-marks").hidden = !orders.rows.some((group) => group.in_use.length === 2);
  $("shown").addEventListener("change", drawOrders);
  $("orders-pass").addEventListener("input", (event) => { stopOrders(); showOrders(Number(event.target.value)); });
  $("orders-play").addEventListener("click", playOrders);
  drawOrders();
}

function drawCell(row, told) {
  const box = make("div", "cell");
  const verdict = make("p", row.student_right ? "right-answer" : "wrong-answer", `${row.student_right ? "✓ right:" : "✗ wrong:"} ${row.student_extracted ? `it answers ${quoted(row.student_extracted)}` : "no answer found"}`);
  verdict.append(make("span", "soft", row.student_right ? "" : `, right is ${quoted(row.expected ?? "")}`));
  const place = make("div", "tokens");
  const frames = framesOf(row);
  const heading = make("h3", "", row.step === 0 ? "Before training" : `After ${row.step} updates`);
  heading.append(make("span", "soft", `, ${told}`));
  const pointed = make("p", "pointed");
  pointed.setAttribute("aria-live", "polite");
  place.tabIndex = 0;
  place.setAttribute("role", "group");
  place.setAttribute("aria-label", `${heading.textContent}; the arrow keys go through its words`);
  box.append(heading, verdict, place, pointed);
  const elements = drawTokens(place, row, frames, null);
  let current = -1;
  const point = (i) => {
    elements[current]?.classList.remove("target");
    current = i;
    const element = elements[i];
    element?.classList.add("target");
    if (!element || element.classList.contains("blank")) {
      pointed.textContent = element ? `Position ${i + 1} is still blank.` : "";
      return;
    }
    const step = frames.findIndex((frame) => frame.at.includes(i)) + 1;
    pointed.textContent = `${quoted(row.tokens[i])}: step ${step} of ${frames.length}, with ${percent(row.confidence[i])} for its best guess`;
  };
  const pointer = (event) => { const i = elements.indexOf(event.target); if (i >= 0) point(i); };
  place.addEventListener("pointerover", pointer);
  place.addEventListener("click", pointer);
  place.addEventListener("keydown", (event) => {
    const last = elements.length - 1;
    const moves = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: last };
    if (last < 0 || !(event.key in moves)) return;
    event.preventDefault();
    point(Math.max(0, Math.min(last, moves[event.key])));
    elements[current].scrollIntoView({ block: "nearest" });
  });
  place.addEventListener("focusout", () => point(-1));
  place.addEventListener("pointerleave", () => { if (document.activeElement !== place) point(-1); });
  orders.cells.push({ frames, verdict, elements });
  return box;
}

function drawOrders() {
  stopOrders();
  const group = orders.rows[Number($("shown").value)];
  const rows = parsed(group.block);
  drawPrompt($("shown-prompt"), rows[0].prompt);
  const longest = rows.reduce((a, b) => (b.tokens.length > a.tokens.length ? b : a));
  const steps = [...new Set(rows.map((row) => row.step))].sort((a, b) => a - b);
  const wanted = steps.length > 1 ? [steps[0], steps[steps.length - 1]] : steps;
  orders.cells = [];
  const boxes = [];
  for (const [order, told] of COLUMNS) {
    for (const step of wanted) {
      const row = rows.find((one) => one.step === step && one.order === order);
      if (row) boxes.push(drawCell(row, told));
    }
  }
  $("cells").classList.toggle("one", wanted.length < 2);
  put($("cells"), ...boxes);
  blocksNote($("orders-blocks"), longest);
  drawScale($("orders-scale"), longest);
  showOrders(100);
}

function showOrders(share) {
  orders.share = share;
  $("orders-pass").value = String(share);
  for (const cell of orders.cells) {
    showFrames(cell.elements, cell.frames, Math.round((share / 100) * cell.frames.length));
    // Whether it is right is known when all is written.
    cell.verdict.classList.toggle("open", share < 100);
  }
  const told = share === 100 ? "all steps" : `${share}% of the steps`;
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
