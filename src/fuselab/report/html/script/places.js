// Where cells stand in a map: in a grid of sizes where their names tell one, else by case.

function place(cell) {
  const known = (page.places[cell.op] || {})[cell.case];
  if (!known) return null;
  const [alike, rows, columns, row, column] = known;
  return { alike, rows, columns, row, column };
}

function volume(text) {
  return text.split("x").reduce((product, part) => product * Number(part), 1);
}

// Grids of the cells of one family and dtype: [{title, rows, columns, rowName, columnName, at}], or
// none where a grid would have one row or one column. at: Map of "row\ncolumn" to cells.
function grids(cells) {
  if (!cells.every(place)) return [];
  const found = [...grouped(cells, (cell) => place(cell).alike)].map(([alike, part]) => {
    const at = grouped(part, (cell) => `${place(cell).row}\n${place(cell).column}`);
    const rows = [...new Set(part.map((cell) => place(cell).row))];
    const columns = [...new Set(part.map((cell) => place(cell).column))];
    rows.sort((a, b) => volume(a) - volume(b));
    columns.sort((a, b) => volume(a) - volume(b));
    const { rows: rowName, columns: columnName } = place(part[0]);
    return { title: alike, rows, columns, rowName, columnName, at };
  });
  const filled = found.filter((grid) => grid.rows.length > 1 && grid.columns.length > 1
    && grid.at.size > (grid.rows.length * grid.columns.length) / 2);
  return filled.length === found.length ? filled : [];
}
