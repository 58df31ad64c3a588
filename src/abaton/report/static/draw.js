// Draws figures that are plain data, in the colours of the page: reports and the dashboard draw with the same lines.
"use strict";
const abaton = (function () {
  const paper = matchMedia("print");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function themed(layout, narrow) {
    const ink = colour("--ink"), line = colour("--line"), soft = colour("--soft");
    const ax = { gridcolor: line, zerolinecolor: line, linecolor: line, tickfont: { color: soft }, automargin: true };
    const merged = Object.assign({
      height: 320, margin: { l: 8, r: 12, t: 12, b: 8 }, font: { family: "inherit", color: ink, size: narrow ? 11 : 13 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      hoverlabel: { bgcolor: colour("--paper"), bordercolor: line, font: { color: ink } },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    }, layout);
    // What stands above a part of a figure has room below the legend, and is small on a phone.
    const above = (layout.annotations || []).filter((each) => each.yanchor === "bottom" && each.y >= 1).length;
    if (above && !layout.legend) merged.legend = Object.assign({}, merged.legend, { y: 1.02 + 40 / merged.height });
    if (above) merged.annotations = layout.annotations.map((each) => ({ ...each, font: { size: narrow ? 10 : 14 } }));
    for (const key of ["xaxis", "yaxis", ...Object.keys(layout).filter((name) => /^[xy]axis\d/.test(name))]) {
      merged[key] = Object.assign({}, ax, layout[key]);
    }
    return merged;
  }

  // A figure without a place is in a folded part: it is drawn when the part is opened.
  function draw(plot, drawn) {
    const wide = paper.matches ? Math.min(plot.clientWidth, 640) : plot.clientWidth;
    if (!wide) return;
    const layout = themed(drawn.layout, wide < 480);
    if (drawn.layout.yaxis && drawn.layout.yaxis.scaleanchor) layout.height = Math.min(layout.height, wide + 40);
    if (paper.matches) Object.assign(layout, { autosize: false, width: wide });
    Plotly.react(plot, drawn.data, layout, { displayModeBar: false, responsive: true });
  }

  function again(redraw) {
    for (const asked of [paper, matchMedia("(prefers-color-scheme: dark)")]) asked.addEventListener("change", redraw);
    document.addEventListener("abaton-theme", redraw);
  }
  return { draw, again };
})();

(function () {
  const told = document.getElementById("figures");
  if (!told) return;
  const figures = JSON.parse(told.textContent);
  const redraw = () => {
    for (const figure of document.querySelectorAll("[data-figure]")) {
      abaton.draw(figure.querySelector(".plot"), figures[figure.dataset.figure]);
    }
    document.body.dataset.drawn = "1";
  };
  abaton.again(redraw);
  document.addEventListener("toggle", redraw, true);
  redraw();
})();
