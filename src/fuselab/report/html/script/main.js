// Start the sections, once the cells are there.

async function main() {
  await load();
  for (const cell of page.cells) cell.family = family(cell);
  const first = page.measured[0];
  startWalking();
  if (first) {
    const several = page.runs.length > 1;
    startHeat(document.getElementById("map"), { family: first.family, run: 0,
      show: several ? "versus" : "speedup", other: several ? page.runs[1].name : null });
    startLines(document.getElementById("sizes"), { family: first.family, run: 0 });
    startRoofline(document.getElementById("roofline"));
    startCells(document.getElementById("cells"));
  }
  startDrawer(document.getElementById("drawer"));
  document.documentElement.classList.add("drawn");
  performance.mark("drawn");
}

main();
addEventListener("DOMContentLoaded", () =>
  document.querySelectorAll("table.times").forEach(stopAt));
