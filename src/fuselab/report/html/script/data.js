// The cells, from the columns that html/payload.py packs.

const page = { cells: [], byKey: new Map() };

// A cell reads the columns: objects of fifty fields each would take longer to make than all else.
class Cell {
  constructor(i) {
    this.i = i;
  }

  get good() {
    return this.status === "ok";
  }

  get ceiling() {
    return this.role === "ceiling";
  }
}

function column(name, value) {
  Object.defineProperty(Cell.prototype, name, { get() { return value(this.i); } });
}

async function unpack(text) {
  const raw = atob(text.trim());
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function load() {
  const data = await unpack(document.getElementById("data").textContent);
  Object.assign(page, data);
  column("key", (i) => data.keys[i]);
  column("run", (i) => data.run[i]);
  for (const [name, [texts, which]] of Object.entries(data.texts)) {
    column(name, (i) => texts[which[i]]);
  }
  for (const [name, values] of Object.entries(data.numbers)) column(name, (i) => values[i]);
  page.cells = data.keys.map((_, i) => new Cell(i));
  page.byKey = new Map(page.cells.map((cell) => [cell.key, cell]));
  page.measured = page.cells.filter((cell) => !cell.ceiling);
}

// The order statistics of a cell's samples that the page keeps, in us.
function samples(cell) {
  let sum = 0;
  return page.samples[cell.i].map((step) => {
    sum += step;
    return cell.median_us * (1 + sum / 1000);
  });
}

function distinct(cells, name) {
  return [...new Set(cells.map((cell) => cell[name]))];
}

// What cells that compete with each other have in common.
function problem(cell) {
  return [cell.run, cell.op, cell.direction, cell.case, cell.dtype, cell.layout, cell.device]
    .join("\n");
}

function grouped(items, by) {
  const groups = new Map();
  for (const item of items) {
    const key = by(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return groups;
}

const DIRECTIONS = { fwd: "forward", bwd: "backward" };

// Operator, direction, device and layout: what one map or one chart shows.
function family(cell) {
  const where = cell.layout === "contiguous" ? cell.device : `${cell.device}, ${cell.layout}`;
  return `${cell.op} ${DIRECTIONS[cell.direction] || cell.direction} on ${where}`;
}

// The fastest good one of ours, or null.
function fastestOwn(cells) {
  const own = cells.filter((cell) => cell.role === "ours" && cell.good);
  return own.reduce((a, b) => (a && a.median_us <= b.median_us ? a : b), null);
}
