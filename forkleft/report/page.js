// The page: its theme, and the start of its parts.

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
