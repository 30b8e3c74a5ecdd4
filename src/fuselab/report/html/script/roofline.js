// All cells under the roofs that were measured: FLOP per byte of the cost model, FLOP/s reached.

// GB/s of a copy of 4 GiB, the most of it; of a run without one the best ceiling of a group.
function memoryRoof(run) {
  const own = page.cells.filter((cell) => cell.run === run);
  const recipe = own.filter((cell) => cell.op === "ceiling" && cell.gbps).map((cell) => cell.gbps);
  const groups = own.map((cell) => cell.ceiling_gbps).filter(Boolean);
  return recipe.length ? Math.max(...recipe) : groups.length ? Math.max(...groups) : null;
}

function startRoofline(section) {
  const dots = page.measured.filter((cell) => cell.good && cell.flops && cell.ideal_bytes
    && cell.median_us);
  if (!dots.length) return;
  section.hidden = false;
  const canvas = section.querySelector("canvas");
  const hidden = new Set();
  const impls = distinct(dots, "impl");
  const draw = () => {
    const points = impls.filter((impl) => !hidden.has(impl)).map((impl) => {
      const own = dots.filter((cell) => cell.impl === impl);
      return { impl, pointRadius: 3, pointHoverRadius: 6, borderWidth: 0,
        backgroundColor: `${page.colors[impl] || ink("--quiet")}99`,
        data: own.map((cell) => ({
          x: cell.flops / cell.ideal_bytes, y: cell.flops / cell.median_us * 1e6, cell })) };
    });
    const at = dots.map((cell) => cell.flops / cell.ideal_bytes);
    const low = 2 ** Math.floor(Math.log2(Math.min(...at) / 1.5));
    const high = 2 ** Math.ceil(Math.log2(Math.max(...at) * 1.5));
    const most = Math.max(...dots.map((cell) => cell.flops / cell.median_us * 1e6));
    const roofs = page.runs.map((run, i) => [run.name, memoryRoof(i)]).filter(([, gbps]) => gbps);
    const lines = roofs.map(([name, gbps]) => ({
      label: name, gbps, showLine: true, pointRadius: 0, pointHitRadius: 0, borderWidth: 1.5,
      borderColor: ink("--ink"), borderDash: [6, 4],
      data: [low, high].map((x) => ({ x, y: x * gbps * 1e9 })) }));
    section.querySelector(".says").textContent = roofs.length
      ? `Dashed, the faster of a copy and an addition: ${roofs.map(([name, gbps]) =>
        `${short(gbps)} GB/s` + (page.runs.length > 1 ? ` of ${name}` : "")).join("; ")}. `
      : "No ceiling was measured. ";
    chart(canvas, {
      type: "scatter", data: { datasets: [...points, ...lines] },
      options: {
        onClick: opened,
        scales: {
          x: { ...powers(2, short), min: low, max: high,
            title: { text: "FLOP per byte (model)" } },
          y: { ...powers(10, (value) => scaled(value, "")), max: 4 * most,
            title: { text: "FLOP/s" } },
        },
        plugins: { tooltip: { filter: (item) => item.raw.cell, callbacks: {
          label: ({ raw }) => pointText(raw, `${raw.cell.op}: ${scaled(raw.y, "FLOP/s")} at `
            + `${short(raw.x, 3)} FLOP/byte`) } } },
      },
    });
  };
  legend(section.querySelector(".legend"), impls, hidden, draw);
  whenSeen(section, draw);
}
