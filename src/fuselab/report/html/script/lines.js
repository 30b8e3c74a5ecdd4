// Time and bandwidth over size: the points of all cases, a line through the median of each half
// octave, and a band of their 95 % intervals.

const MEASURES = {
  gbps: {
    label: "bandwidth", text: "GB/s", of: (cell, us) => cell.ideal_bytes / us / 1e3,
    known: (cell) => cell.gbps, scale: { type: "linear", beginAtZero: true },
  },
  tflops: {
    label: "FLOP rate", text: "TFLOP/s", of: (cell, us) => cell.flops / us / 1e6,
    known: (cell) => cell.flops, scale: { type: "linear", beginAtZero: true },
  },
  time: { label: "time", text: "us", of: (cell, us) => us, known: () => true,
    scale: powers(10, (value) => short(value)) },
};
// Of more FLOPs a byte a case is bound by its products: tables.PRODUCTS.
const PRODUCTS = 64;

function usualMeasure(cells) {
  const products = cells.filter((cell) => cell.flops > PRODUCTS * cell.ideal_bytes);
  return 2 * products.length > cells.length ? "tflops" : "gbps";
}

// What one chart shows: a dtype, and where names tell a grid with a third size, one of those.
function chartKey(cell) {
  return [SHORT_TYPES[cell.dtype] || cell.dtype, place(cell)?.alike].filter(Boolean).join(", ");
}

function middle(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// One implementation's points, and by half octave: the median of them and of their intervals' ends.
function series(cells, measure) {
  const points = cells.map((cell) => {
    const ends = [cell.ci_low_us, cell.ci_high_us].map((us) => measure.of(cell, us));
    return { x: cell.ideal_bytes, y: measure.of(cell, cell.median_us), cell,
      low: Math.min(...ends), high: Math.max(...ends) };
  });
  const bins = [...grouped(points, (point) => Math.round(2 * Math.log2(point.x))).values()];
  const line = bins.map((bin) => {
    const [x, y, low, high] = ["x", "y", "low", "high"].map((k) => middle(bin.map((p) => p[k])));
    return { x, y, low, high };
  });
  line.sort((a, b) => a.x - b.x);
  return { points, line };
}

function datasets(impl, { points, line }, ours) {
  const color = page.colors[impl] || ink("--quiet");
  const band = (side) => line.map((point) => ({ x: point.x, y: point[side] }));
  const bare = { impl, pointRadius: 0, showLine: true, borderWidth: 0, pointHitRadius: 0 };
  return [
    { ...bare, data: band("low") },
    { ...bare, data: band("high"), fill: "-1", backgroundColor: `${color}38` },
    { ...bare, data: line, borderColor: color, borderWidth: ours ? 2.5 : 1.4 },
    { impl, data: points, pointRadius: 2.5, pointHoverRadius: 5, backgroundColor: `${color}99`,
      borderWidth: 0 },
  ];
}

function ceilingLine(cells, measure) {
  const known = cells.filter((cell) => cell.ceiling_gbps && cell.good);
  const points = known.map((cell) => ({
    x: cell.ideal_bytes, y: measure.of(cell, cell.ideal_bytes / cell.ceiling_gbps / 1e3) }));
  const bins = [...grouped(points, (p) => Math.round(2 * Math.log2(p.x))).values()];
  const data = bins.map((bin) => (
    { x: middle(bin.map((p) => p.x)), y: middle(bin.map((p) => p.y)) }));
  data.sort((a, b) => a.x - b.x);
  return { impl: "ceiling", data, showLine: true, pointRadius: 0, pointHitRadius: 0,
    borderColor: ink("--ink"), borderDash: [6, 4], borderWidth: 1.2 };
}

function opened(event, active, drawn) {
  const point = active[0] && drawn.data.datasets[active[0].datasetIndex].data[active[0].index];
  if (point?.cell) show(point.cell);
}

function pointText(point, text) {
  const { cell } = point;
  return [`${named(cell.impl)} ${cell.case} ${SHORT_TYPES[cell.dtype] || cell.dtype}`, text];
}

function drawLines(canvas, cells, measure, hidden) {
  const impls = distinct(cells, "impl");
  const all = impls.filter((impl) => !hidden.has(impl)).flatMap((impl) => {
    const own = cells.filter((cell) => cell.impl === impl);
    return datasets(impl, series(own, measure), own[0].role === "ours");
  });
  if (!hidden.has("ceiling") && measure !== MEASURES.tflops) all.push(ceilingLine(cells, measure));
  chart(canvas, {
    type: "scatter", data: { datasets: all },
    options: {
      onClick: opened,
      scales: {
        x: { ...powers(4, bytes), title: { text: "ideal bytes" } },
        y: { ...measure.scale, title: { text: measure.text } },
      },
      plugins: { tooltip: {
        filter: (item) => item.raw.cell,
        callbacks: { label: ({ raw }) => pointText(raw, `${short(raw.y)} ${measure.text} `
          + `(${short(raw.low)} to ${short(raw.high)}), ${bytes(raw.x)}`) },
      } },
    },
  });
}

// Buttons that hide and show what is drawn.
function legend(into, names, hidden, draw) {
  into.replaceChildren(...names.map((name) => {
    const button = el("button", { type: "button", "aria-pressed": String(!hidden.has(name)),
      onclick: () => {
        hidden[hidden.has(name) ? "delete" : "add"](name);
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
        draw();
      } },
    name === "ceiling" ? "- - " : dot(name), named(name));
    return button;
  }));
}

function lineFigure(title, cells, measure) {
  const label = `${measure.text} over size, ${title}; the tables have the figures`;
  const canvas = el("canvas", { role: "img", "aria-label": label });
  const [hidden, buttons] = [new Set(), el("div", { class: "legend" })];
  const draw = () => drawLines(canvas, cells, measure, hidden);
  const ceiling = measure === MEASURES.tflops ? [] : ["ceiling"];
  legend(buttons, [...distinct(cells, "impl"), ...ceiling], hidden, draw);
  const figure = el("figure", {}, el("figcaption", {}, title), buttons,
    el("div", { class: "canvas" }, canvas));
  whenSeen(figure, draw);
  return figure;
}

function startLines(section, s) {
  const [controls, into] = ["controls", "charts"].map((n) => section.querySelector(`.${n}`));
  const offer = offering(controls, s, () => start());
  const start = () => {
    const timed = page.measured.filter((cell) => cell.family === s.family && cell.run === s.run
      && cell.median_us && cell.ideal_bytes);
    const measures = Object.keys(MEASURES).filter((name) => timed.some(MEASURES[name].known));
    s.measure = pick(s.measure, [usualMeasure(timed), ...measures]);
    const measure = MEASURES[s.measure];
    const cells = timed.filter(measure.known);
    controls.replaceChildren(
      offer("family", "problem", distinct(page.measured, "family")),
      offer("measure", "show", measures.map((name) => [name, MEASURES[name].label])),
      offer("run", "run", page.runs.map((run, i) => [String(i), run.name])),
    );
    const figures = [...grouped(cells, chartKey)]
      .map(([title, part]) => lineFigure(`${s.family}, ${title}`, part, measure));
    const none = el("p", {}, "No cell of this problem has such a figure.");
    into.replaceChildren(...(figures.length ? figures : [none]));
  };
  section.hidden = false;
  start();
}
