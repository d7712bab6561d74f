// Draws a job's curves with uPlot. The tables hold the same figures, for reading without scripts.
"use strict";
(function () {
  const place = document.getElementById("chart");
  if (!place || !window.uPlot) return;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const heightPixels = 260, gapMilliseconds = 2000;
  let plot = null, curves = null, timer = null;

  // A curve as uPlot's series, and the two edges of the band that it lies in; of one point they are dots.
  function curve(values, label, stroke, more) {
    const isLone = values.filter((value) => value !== null).length === 1;
    const edge = { stroke: "transparent", points: { show: isLone, stroke: stroke, fill: stroke }, spanGaps: true, ...(more.scale ? { scale: more.scale } : {}) };
    return [{ label: label, stroke: stroke, width: 2, spanGaps: true, ...more }, { ...edge, label: label + ", 95 % from" }, { ...edge, label: label + ", to" }];
  }

  function draw() {
    if (!curves || curves.rounds.length < 2) return;
    place.hidden = false;
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    const drawn = [curves.figure, curves.loss, ...(curves.figure_all ? [curves.figure_all] : [])];
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
        ...curve(curves.figure.value, curves.figure_all ? curves.main + ", drawn silos" : curves.main, color("--accent"), {}),
        ...curve(curves.loss.value, "loss", color("--warn"), { scale: "loss", dash: [6, 4] }),
        ...(curves.figure_all ? curve(curves.figure_all.value, curves.main + ", all silos", color("--text"), { points: { show: true } }) : []),
      ],
      bands: drawn.map((each, place) => ({ series: [3 * place + 3, 3 * place + 2], fill: color(each === curves.loss ? "--warn" : "--accent") + "22" })),
    }, [curves.rounds, ...drawn.flatMap((each) => [each.value, each.low, each.high])], place);
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
