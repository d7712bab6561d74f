// Draws a job's curves with uPlot. The tables hold the same figures, for reading without scripts.
"use strict";
(function () {
  const place = document.getElementById("chart");
  if (!place || !window.uPlot) return;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const heightPixels = 260, gapMilliseconds = 2000;
  let plot = null, curves = null, timer = null;

  function draw() {
    if (!curves || curves.rounds.length < 2) return;
    place.hidden = false;
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    const width = place.clientWidth - 24;
    if (plot) plot.destroy();
    plot = new uPlot({
      width: width,
      height: heightPixels - 60,
      cursor: { drag: { x: false, y: false } },
      legend: { live: false },
      scales: { x: { time: false } },
      axes: [{ ...axis, label: "round", labelSize: 20, size: 36 }, { ...axis, size: 56 }, { ...axis, scale: "loss", side: 1, size: 56, grid: { show: false } }],
      series: [
        { label: "round" },
        { label: curves.figure_all ? curves.main + ", drawn silos" : curves.main, stroke: color("--accent"), width: 2, spanGaps: true },
        { label: "loss", scale: "loss", stroke: color("--warn"), width: 2, dash: [6, 4], spanGaps: true },
        ...(curves.figure_all ? [{ label: curves.main + ", all silos", stroke: color("--text"), width: 2, points: { show: true }, spanGaps: true }] : []),
      ],
    }, [curves.rounds, curves.figure, curves.loss, ...(curves.figure_all ? [curves.figure_all] : [])], place);
  }

  async function load() {
    timer = null;
    const answer = await fetch(place.dataset.curves, { credentials: "same-origin" });
    if (!answer.ok || answer.redirected) return;
    curves = await answer.json();
    draw();
  }

  load();
  document.body.addEventListener("htmx:sseMessage", function () {
    if (timer === null) timer = setTimeout(load, gapMilliseconds);
  });
  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
