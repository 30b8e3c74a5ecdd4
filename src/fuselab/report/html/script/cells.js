// All cells with all metrics: sorted by a column, filtered by words.

const PAGE = 100;
// [title, unit, value, text]
const TEXTS = [
  ["operator", "", (c) => c.op],
  ["implementation", "", (c) => c.impl, named],
  ["direction", "", (c) => DIRECTIONS[c.direction] || c.direction],
  ["case", "", (c) => c.case],
  ["dtype", "", (c) => c.dtype, (d) => SHORT_TYPES[d] || d],
  ["status", "", (c) => c.status],
];

// The columns of the texts above, then of the metrics that are known of any cell.
function columns() {
  const known = page.metrics.filter(({ name }) =>
    name === "median_us" || page.measured.some((cell) => !unknown(cell[name])));
  return [...TEXTS, ...known.map(({ name, title, detail, form }) =>
    [title, detail, (cell) => cell[name], FORMS[form]])];
}

// What words are looked for in, made when the first are: it takes a twentieth of opening the page.
function words(cell) {
  cell.words ??= [cell.op, cell.impl, cell.direction, cell.case, cell.dtype,
    SHORT_TYPES[cell.dtype], cell.layout, cell.device, cell.status, cell.kernels, cell.chosen,
    page.runs[cell.run].name].join(" ").toLowerCase();
  return cell.words;
}

function unknown(value) {
  return value === null || value === undefined || value === "";
}

function ordered(cells, value, down) {
  const sign = down ? -1 : 1;
  return [...cells].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (unknown(x) || unknown(y)) return unknown(x) - unknown(y);
    if (typeof x === "number" && typeof y === "number") return sign * (x - y);
    return sign * String(x).localeCompare(String(y), undefined, { numeric: true });
  });
}

function startCells(section) {
  const several = page.runs.length > 1;
  const shown = columns();
  const state = { column: null, down: false, words: [], status: "", shown: PAGE };
  const head = el("tr", {}, ...(several ? [el("th", { scope: "col" }, "run")] : []),
    ...shown.map(([title, unit], i) => {
      const button = el("button", { type: "button", onclick: () => {
        state.down = state.column === i ? !state.down : i > 5;
        state.column = i;
        draw();
      } }, title, unit ? el("small", {}, unit) : null);
      return el("th", { scope: "col", class: i > 5 ? "n" : null, "data-i": i }, button);
    }));
  const body = el("tbody");
  const count = section.querySelector(".count");
  const more = section.querySelector(".more");
  const draw = () => {
    const found = page.measured.filter((cell) => (!state.status || cell.status === state.status)
      && state.words.every((word) => words(cell).includes(word)));
    const sorted = state.column === null ? found
      : ordered(found, shown[state.column][2], state.down);
    body.replaceChildren(...sorted.slice(0, state.shown).map((cell) => el("tr", {},
      ...(several ? [el("td", {}, page.runs[cell.run].name)] : []),
      ...shown.map(([, , value, text], i) => {
        const known = value(cell);
        const label = unknown(known) ? "n/a" : text ? text(known) : known;
        if (i !== 3) return el("td", { class: i > 5 ? "n" : null }, label);
        return el("td", {}, el("a", { href: address(cell) }, label));
      }))));
    for (const th of head.querySelectorAll("[data-i]")) {
      const on = Number(th.dataset.i) === state.column;
      th.setAttribute("aria-sort", on ? (state.down ? "descending" : "ascending") : "none");
    }
    const many = Math.min(state.shown, sorted.length);
    count.textContent = `${many} of ${sorted.length} cells shown, ${page.measured.length} in all`;
    more.hidden = many === sorted.length;
  };
  more.addEventListener("click", () => {
    state.shown *= 4;
    draw();
  });
  const input = el("input", { type: "search", id: "words", placeholder: "softmax bf16 compile",
    oninput: () => {
      state.words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      state.shown = PAGE;
      draw();
    } });
  section.querySelector(".controls").replaceChildren(
    el("label", { class: "control", for: "words" }, el("span", {}, "words"), input),
    choice("status", [["", "any"], ...distinct(page.measured, "status")], (value) => {
      state.status = value;
      draw();
    }, ""));
  section.querySelector(".table").replaceChildren(el("table", {},
    el("caption", { class: "unseen" }, "All cells"), el("thead", {}, head), body));
  section.hidden = false;
  whenSeen(section, draw);
}
