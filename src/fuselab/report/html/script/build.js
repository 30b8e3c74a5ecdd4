// Elements, figures as text, and the controls that sections share.

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function short(value, digits = 4) {
  if (value === null || value === undefined) return "n/a";
  if (typeof value === "string") return value;
  return String(Number(value.toPrecision(digits)));
}

function bytes(value) {
  if (value === null || value === undefined) return "n/a";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (Math.abs(value) >= 1024 && power < 4) [value, power] = [value / 1024, power + 1];
  return `${short(value, 3)} ${units[power]}`;
}

function scaled(value, unit) {
  if (value === null || value === undefined) return "n/a";
  const step = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]
    .find(([least]) => Math.abs(value) >= least) || [1, ""];
  return `${short(value / step[0])} ${step[1]}${unit}`;
}

function percent(share) {
  return share === null || share === undefined ? "n/a" : `${Math.round(100 * share)}%`;
}

// How the values of a metric are written, by its form.
const FORMS = { us: (v) => short(v), bytes, percent, si: (v) => scaled(v, ""),
  whole: (v) => short(v, 9), number: (v) => short(v, 3) };

function ratioText(ratio) {
  if (ratio < 0.1) return short(ratio, 1);
  return ratio < 10 ? ratio.toFixed(2) : ratio.toFixed(1);
}

const SHORT_TYPES = { float64: "fp64", float32: "fp32", float16: "fp16", bfloat16: "bf16" };

function named(impl) {
  return page.labels[impl] || impl;
}

function dot(impl) {
  return el("i", { class: "dot", style: { background: page.colors[impl] || "gray" } });
}

let controls = 0;

// A labelled list to choose from: options are texts, or [value, text]; one alone is not offered.
function choice(label, options, change, chosen) {
  const id = `control-${(controls += 1)}`;
  const pairs = options.map((one) => (Array.isArray(one) ? one : [one, one]));
  const list = el("select", { id, onchange: () => change(list.value) },
    ...pairs.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  return el("label", { class: "control", for: id, hidden: pairs.length < 2 },
    el("span", {}, label), list);
}

// Lists to choose the fields of a state from: a change draws again, and the list keeps the focus.
function offering(controls, state, draw) {
  return (name, label, options) => {
    const change = (value) => {
      state[name] = typeof state[name] === "number" ? Number(value) : value;
      draw();
      controls.querySelector(`[data-name="${name}"] select`)?.focus();
    };
    const made = choice(label, options, change, String(state[name]));
    made.dataset.name = name;
    return made;
  };
}

// Tables that the arrow keys walk in, each one stop of the Tab key.
function startWalking() {
  document.addEventListener("focusin", ({ target }) => {
    if (!target.matches("[data-c]")) return;
    for (const one of target.closest("table").querySelectorAll("[data-c][tabindex='0']")) {
      one.tabIndex = -1;
    }
    target.tabIndex = 0;
  });
  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest("[data-c]");
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!cell || !moves[event.key]) return;
    event.preventDefault();
    const next = neighbour(cell, ...moves[event.key]);
    if (!next) return;
    next.tabIndex = -1;
    next.focus();
  });
}

// The next cell in a direction that opens, or none.
function neighbour(cell, down, right) {
  let [row, column] = [cell.parentElement, cell.cellIndex];
  for (;;) {
    row = down > 0 ? row.nextElementSibling : down < 0 ? row.previousElementSibling : row;
    column += right;
    const next = row?.cells[column];
    if (!next || next.matches("[data-c]")) return next;
  }
}

// Have the Tab key stop at a table's first cell.
function stopAt(table) {
  const first = table.querySelector("[data-c]");
  if (first) first.tabIndex = 0;
}

// Draw when the element comes near the window; again when the colours change.
function whenSeen(element, draw) {
  let seen = false;
  const start = () => {
    if (seen) return;
    seen = true;
    draw();
  };
  new IntersectionObserver((entries, self) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    self.disconnect();
    start();
  }, { rootMargin: "300px" }).observe(element);
  addEventListener("beforeprint", start);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => seen && draw());
}

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A chart in the place of the one before; what all charts have in common.
function chart(canvas, config) {
  Chart.getChart(canvas)?.destroy();
  const [quiet, line] = [ink("--quiet"), ink("--line")];
  for (const axis of Object.values(config.options.scales)) {
    axis.ticks = { color: quiet, maxRotation: 0, ...axis.ticks };
    axis.grid = { color: line };
    axis.title = { display: true, color: quiet, ...axis.title };
  }
  const plugins = { legend: { display: false }, ...config.options.plugins };
  const options = { animation: false, maintainAspectRatio: false, ...config.options, plugins };
  return new Chart(canvas, { ...config, options });
}

// A logarithmic axis with a figure at the powers of a base, at most some eight of them.
function powers(base, text) {
  const afterBuildTicks = (axis) => {
    const ends = [axis.min, axis.max].map((value) => Math.log(value) / Math.log(base));
    const [first, last] = [Math.ceil(ends[0] - 1e-9), Math.floor(ends[1] + 1e-9)];
    const step = Math.max(1, Math.ceil((last - first) / 8));
    const at = Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i);
    if (at.length < 2) return;
    axis.ticks = at.filter((power) => (power - first) % step === 0)
      .map((power) => ({ value: base ** power }));
  };
  return { type: "logarithmic", afterBuildTicks, ticks: { callback: (value) => text(value) } };
}
