// One cell: its figures, its samples, what ran, where, and the command that measures it again.

function address(cell) {
  return `#cell=${encodeURIComponent(cell.key)}`;
}

// The cell that the page's address ends with, if any.
function addressed() {
  const [, key] = location.hash.match(/^#cell=(.*)/) || [];
  try {
    return page.byKey.get(decodeURIComponent(key));
  } catch {
    return undefined; // of an address that was cut
  }
}

function show(cell) {
  location.hash = address(cell);
}

function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

function command(cell) {
  const words = ["fuselab", "run", cell.op, "--case", cell.case, "--dtype", cell.dtype,
    "--direction", cell.direction, "--impl", cell.impl];
  if (["graph", "events", "host"].includes(cell.timer)) words.push("--timer", cell.timer);
  if (cell.timer === "isolated") words.push("--isolate");
  if (cell.precision) words.push("--precision", cell.precision);
  return words.map(quoted).join(" ");
}

function facts(pairs) {
  const known = pairs.filter(([, text]) => !unknown(text) && text !== "n/a");
  return el("dl", { class: "facts" }, ...known.flatMap(([name, text]) =>
    [el("dt", {}, name), el("dd", {}, text)]));
}

// A metric of a cell as text: its unit behind it, or what it is a figure of.
function figure(cell, { name, detail, unit, form }) {
  if (unknown(cell[name])) return null;
  const behind = detail && detail !== unit ? `(${detail})` : detail;
  return `${FORMS[form](cell[name])} ${behind}`.trim();
}

function figures(cell) {
  const interval = cell.median_us === null ? null
    : `${short(cell.ci_low_us)} to ${short(cell.ci_high_us)} us (95 %), ${cell.samples} samples`;
  return facts([
    ["status", cell.reason ? `${cell.status}: ${cell.reason}` : cell.status],
    ["interval", interval],
    ...page.metrics.map((metric) => [metric.title, figure(cell, metric)]),
    ["not counted", cell.not_counted],
  ]);
}

function histogram(cell, canvas) {
  const values = samples(cell);
  const [low, high] = [values[0], values.at(-1)];
  const bins = Math.max(1, Math.min(24, Math.ceil(Math.sqrt(values.length) * 2)));
  const width = (high - low) / bins || high * 0.01;
  const counts = Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.floor((value - low) / width))] += 1;
  chart(canvas, {
    type: "bar",
    data: { labels: counts.map((_, i) => short(low + (i + 0.5) * width)),
      datasets: [{ data: counts, backgroundColor: ink("--accent"), categoryPercentage: 1,
        barPercentage: 0.92 }] },
    options: { scales: { x: { title: { text: "us" }, ticks: { maxTicksLimit: 6 } },
      y: { title: { text: "samples" }, ticks: { precision: 0 } } } },
  });
}

function distribution(cell) {
  const kept = page.samples[cell.i].length;
  if (kept < 2) return [];
  const values = samples(cell);
  const span = `${short(values[0])} to ${short(values.at(-1))} us`;
  const canvas = el("canvas", { role: "img",
    "aria-label": `Samples from ${span}, median ${short(cell.median_us)}` });
  const part = kept < cell.samples ? ` of ${cell.samples}, evenly taken by size` : "";
  queueMicrotask(() => histogram(cell, canvas));
  return [el("h3", {}, "Samples"),
    el("p", {}, `${kept}${part}: ${span}.`),
    el("div", { class: "canvas small" }, canvas)];
}

function ran(cell) {
  const proof = JSON.parse(cell.proof);
  const kernels = cell.kernels ? cell.kernels.split("; ") : [];
  return [
    el("h3", {}, "What ran"),
    kernels.length ? el("ul", { class: "names" }, ...kernels.map((k) => el("li", {}, k))) : null,
    facts([
      ["implementation", cell.version], ["chosen", cell.chosen], ["timer", cell.timer],
      ["precision", cell.precision],
      ["SM clock", cell.sm_mhz === null ? null : `${short(cell.sm_mhz)} MHz`],
      ["code hash", cell.code],
      ...Object.entries(proof).map(([name, value]) => [name.replaceAll("_", " "), value]),
    ]),
  ].filter(Boolean);
}

function copier(label, text) {
  const button = el("button", { type: "button", class: "copy", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "copied";
    } catch {
      button.textContent = "not allowed here";
    }
  } }, label);
  return button;
}

function besides(cell) {
  const rivals = page.cells.filter((one) => one.i !== cell.i && problem(one) === problem(cell));
  if (!rivals.length) return [];
  const rows = [cell, ...rivals].filter((one) => one.median_us)
    .sort((a, b) => a.median_us - b.median_us);
  return [el("h3", {}, "The same problem"), el("ul", { class: "names" }, ...rows.map((one) =>
    el("li", {}, one.i === cell.i ? el("b", {}, named(one.impl))
      : el("a", { href: address(one) }, named(one.impl)), ` ${short(one.median_us)} us`)))];
}

function fill(dialog, cell) {
  const environment = page.environments[cell.run][cell.environment] || [];
  const again = command(cell);
  dialog.querySelector(".content").replaceChildren(
    el("h2", { id: "drawer-title", tabindex: -1 }, `${cell.op} ${named(cell.impl)}`),
    el("p", {}, [DIRECTIONS[cell.direction] || cell.direction, cell.case, cell.dtype, cell.layout,
      cell.device, page.runs.length > 1 ? `run ${page.runs[cell.run].name}` : null]
      .filter(Boolean).join(" · ")),
    figures(cell),
    ...besides(cell),
    ...distribution(cell),
    el("h3", {}, "Measure it again"),
    el("pre", {}, again),
    copier("copy the command", () => again),
    copier("copy a link to this cell", () => location.href),
    ...ran(cell),
    el("details", {}, el("summary", {}, el("b", {}, `Environment ${cell.environment}`)),
      facts(environment)),
  );
}

function startDrawer(dialog) {
  const leave = () => dialog.open && dialog.close();
  const follow = () => {
    const cell = addressed();
    if (!cell) return leave();
    fill(dialog, cell);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    dialog.querySelector("h2").focus();
  };
  dialog.addEventListener("close", () => {
    if (addressed()) history.pushState(null, "", location.pathname + location.search);
  });
  dialog.addEventListener("click", ({ target }) => target === dialog && leave());
  dialog.querySelector(".close").addEventListener("click", leave);
  addEventListener("hashchange", follow);
  const open = (event) => {
    const at = event.target.closest("[data-c]");
    if (!at || (event.key && event.key !== "Enter")) return;
    show(page.cells[Number(at.dataset.c)]);
  };
  document.addEventListener("click", open);
  document.addEventListener("keydown", open);
  follow();
}
