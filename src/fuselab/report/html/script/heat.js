// Heat maps: numbers in the cells, a glyph where there is none.

const GLYPHS = { out_of_memory: "OOM", unsupported: "–", noisy: "~", timeout: "T/O" };
const OWN = "fastest own";

// One implementation's figure over another's in a run.
function ratioOf(what, value) {
  return {
    label: (s) => `${what} of ${named(s.over)} / ${what} of ${named(s.impl)}`,
    colours: (s) => `Blue, above 1: ${what} below that of ${named(s.over)}; orange: above. `,
    find(found, s) {
      const [over, own] = [find(found, s.over), find(found, s.impl)];
      if (!own?.good || !over?.good) return none(own?.good ? over : own, own, over);
      if (!value(over) || !value(own)) return { glyph: "·", why: `no ${what}`, cell: own };
      const ratio = value(over) / value(own);
      return { text: ratioText(ratio), log: Math.log2(ratio), cell: own };
    },
  };
}

// What a map can show of one problem's cells: {text, log or depth, cell}, or
// {glyph, why, cell}.
const SHOWS = {
  speedup: ratioOf("time", (cell) => cell.median_us),
  host: ratioOf("host time", (cell) => cell.host_us),
  share: {
    label: (s) => `time of the ceiling / time of ${named(s.impl)}`,
    colours: () => "The deeper the blue, the nearer to the ceiling. ",
    find(found, s) {
      const own = find(found, s.impl);
      if (!own?.good || !own.ceiling_share) return none(own, own, null);
      return { text: percent(own.ceiling_share), depth: own.ceiling_share, cell: own };
    },
  },
  time: {
    label: (s) => `time of ${named(s.impl)}, us`,
    colours: () => "",
    find(found, s) {
      const own = find(found, s.impl);
      return own?.median_us ? { text: short(own.median_us, 3), cell: own } : none(own, own, null);
    },
  },
  versus: {
    label: (s) => `time in ${page.runs[0].name} / time in ${s.other} of ${named(s.impl)}`,
    colours: (s) => `Blue, above 1: faster in ${s.other} than in ${page.runs[0].name}; `
      + "orange: slower. ",
    find(found, s) {
      const runs = grouped(found, (cell) => page.runs[cell.run].name);
      const [a, b] = [page.runs[0].name, s.other].map((name) => find(runs.get(name) || [], s.impl));
      if (!a?.good || !b?.good) return none(a?.good ? b : a, b, a);
      const ratio = a.median_us / b.median_us;
      return { text: ratioText(ratio), log: Math.log2(ratio), cell: b };
    },
  },
};

// The same of what others published: this ratio, and theirs in brackets.
function beside(name) {
  const { about, ratios } = page.beside[name];
  return {
    label: (s) => `time of ${named(s.over)} / time of ${named(s.impl)}, here (${name})`,
    colours: (s) => `Blue: ${named(s.impl)} gains more over ${named(s.over)} here than in `
      + `${about}; orange: less. `,
    find(found, s) {
      const own = SHOWS.speedup.find(found, s);
      if (own.log === undefined) return own;
      const { op, direction, dtype, case: name_, impl } = own.cell;
      const theirs = ratios[`${op} ${direction} ${dtype}`]?.[`${name_} ${s.over}/${impl}`];
      if (!theirs) return { glyph: "·", why: "not published", cell: own.cell };
      const text = `${own.text} (${ratioText(theirs)})`;
      return { ...own, text, log: own.log - Math.log2(theirs) };
    },
  };
}

function find(found, impl) {
  if (impl !== OWN) return found.find((cell) => cell.impl === impl) || null;
  return fastestOwn(found) || found.find((cell) => cell.role === "ours") || null;
}

function none(culprit, own, other) {
  const cell = own || other;
  if (!culprit) return { glyph: "·", why: "not run", cell };
  return { glyph: GLYPHS[culprit.status] || "×", why: `${culprit.impl}: ${culprit.status}`, cell };
}

// log2 of the ratio that has the full colour: all but the outermost twentieth lie within.
function fullColour(found) {
  const logs = found.map((one) => Math.abs(one.log ?? 0)).sort((a, b) => a - b);
  return Math.max(1, Math.ceil(logs[Math.floor(0.95 * (logs.length - 1))] || 0));
}

function shadeOf(found, full) {
  if (!found.text || (found.log === undefined && found.depth === undefined)) return "";
  const part = found.depth === undefined ? found.log / full : found.depth;
  const share = Math.round(50 * Math.min(1, Math.abs(part)));
  return `color-mix(in oklab, var(${part < 0 ? "--slower" : "--faster"}) ${share}%, var(--card))`;
}

function heatCell(found, full) {
  const text = found.text ?? found.glyph;
  const style = { background: shadeOf(found, full) };
  const attributes = { class: found.text ? "n" : "n glyph", style };
  if (found.cell) attributes["data-c"] = found.cell.i;
  if (found.cell) attributes.tabindex = -1;
  const why = found.why ? el("span", { class: "unseen" }, ` ${found.why}`) : null;
  return el("td", attributes, text, why);
}

// map: {title, corner, columns, rows, found: a row of findings for each row}
function heatTable(map, full) {
  const head = el("tr", {}, el("th", { scope: "col" }, map.corner),
    ...map.columns.map((name) => el("th", { scope: "col", class: "n" }, name)));
  const body = map.rows.map((row, i) => el("tr", {}, el("th", { scope: "row" }, row),
    ...map.found[i].map((one) => heatCell(one, full))));
  const table = el("table", { class: "heat", "aria-label": map.title },
    el("thead", {}, head), el("tbody", {}, ...body));
  stopAt(table);
  return el("div", { class: "card" }, el("p", { class: "caption" }, map.title),
    el("div", { class: "scroll" }, table));
}

function mapOf(title, corner, columns, rows, find) {
  const found = rows.map((row) => columns.map((column) => find(row, column)));
  return { title, corner, columns, rows, found };
}

// Maps of the chosen family and dtype: of each grid of sizes, or else cases by implementations.
function mapsOf(s) {
  const show = SHOWS[s.show];
  const cells = page.measured.filter((cell) => cell.family === s.family && cell.dtype === s.dtype
    && (s.show === "versus" || cell.run === s.run));
  const title = `${s.family}, ${SHORT_TYPES[s.dtype] || s.dtype}`;
  const found = grids(cells).map((grid) => mapOf(
    [title, grid.title, show.label(s)].filter(Boolean).join(" · "),
    `${grid.rowName} \\ ${grid.columnName}`, grid.columns, grid.rows,
    (row, column) => show.find(grid.at.get(`${row}\n${column}`) || [], s)));
  if (found.length) return found;
  const byCase = grouped(cells, (cell) => cell.case);
  const impls = distinct(cells, "impl").filter((impl) => !isRatio(s) || impl !== s.over);
  const map = mapOf(`${title} · ${show.label({ ...s, impl: "each" })}`, "case", impls,
    [...byCase.keys()], (row, impl) => show.find(byCase.get(row), { ...s, impl }));
  return [{ ...map, columns: impls.map(named) }];
}

// Whether the map is of one implementation's time over another's in a run.
function isRatio(s) {
  return ["speedup", "host"].includes(s.show) || s.show in page.beside;
}

function drawHeat(into, says, s) {
  const maps = mapsOf(s);
  const full = fullColour(maps.flatMap((map) => map.found.flat()));
  const ratios = s.show === "versus" || isRatio(s);
  says.textContent = SHOWS[s.show].colours(s)
    + (ratios ? `Full colour at ${2 ** full} times.` : "");
  into.replaceChildren(...maps.map((map) => heatTable(map, full)));
}

// What a map can show of these cells: [its name in SHOWS, what the list calls it].
function choicesOf(cells) {
  const several = page.runs.length > 1;
  const host = cells.some((cell) => cell.host_us && cell.timer !== "wall");
  return [
    ...(several ? [["versus", `against ${page.runs[0].name}`]] : []),
    ["speedup", "speedup"],
    ...(host ? [["host", "host time"]] : []),
    ["share", "share of the ceiling"],
    ["time", "time"],
    ...Object.keys(page.beside).map((name) => [name, `beside ${name}`]),
  ];
}

function startHeat(section, s) {
  const [controls, into, says] = ["controls", "maps", "says"]
    .map((name) => section.querySelector(`.${name}`));
  const offer = offering(controls, s, () => draw());
  const draw = () => {
    const cells = page.measured.filter((cell) => cell.family === s.family);
    s.dtype = pick(s.dtype, distinct(cells, "dtype"));
    const impls = distinct(cells, "impl");
    const own = cells.some((cell) => cell.role === "ours");
    if (s.show in page.beside && s.impl === OWN) [s.impl, s.over] = ["compile", "eager"];
    s.impl = pick(s.impl, own ? [OWN, ...impls] : impls);
    s.over = pick(s.over, [...["compile", "eager"].filter((i) => impls.includes(i)), ...impls]);
    const isGrid = grids(cells.filter((cell) => cell.dtype === s.dtype)).length > 0;
    controls.replaceChildren(
      offer("family", "problem", distinct(page.measured, "family")),
      offer("dtype", "dtype", distinct(cells, "dtype").map((d) => [d, SHORT_TYPES[d] || d])),
      offer("show", "show", choicesOf(cells)),
      ...(s.show === "versus"
        ? [offer("other", "run", page.runs.slice(1).map((run) => run.name))]
        : [offer("run", "run", page.runs.map((run, i) => [String(i), run.name]))]),
      ...(isGrid ? [offer("impl", "of", [...(own ? [OWN] : []), ...impls]
        .map((impl) => [impl, named(impl)]))] : []),
      ...(isRatio(s) ? [offer("over", "over", impls.map((i) => [i, named(i)]))] : []),
    );
    drawHeat(into, says, s);
  };
  for (const name of Object.keys(page.beside)) SHOWS[name] = beside(name);
  section.hidden = false;
  draw();
}

function pick(value, options) {
  return options.includes(value) ? value : options[0];
}
