// Draws figures in the colours of the page, for reports and the dashboard.
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
    // Subplot titles need space below the legend and a small font on narrow screens.
    const titles = (layout.annotations || []).filter((note) => note.yanchor === "bottom" && note.y >= 1).length;
    if (titles && !layout.legend) merged.legend = Object.assign({}, merged.legend, { y: 1.02 + 40 / merged.height });
    if (titles) merged.annotations = layout.annotations.map((note) => ({ ...note, font: { size: narrow ? 10 : 14 } }));
    for (const key of ["xaxis", "yaxis", ...Object.keys(layout).filter((name) => /^[xy]axis\d/.test(name))]) {
      merged[key] = Object.assign({}, ax, layout[key]);
    }
    return merged;
  }

  // A figure without a width is in a closed details element: it is drawn when the element opens.
  function draw(plot, figure) {
    const width = paper.matches ? Math.min(plot.clientWidth, 640) : plot.clientWidth;
    if (!width) return;
    const layout = themed(figure.layout, width < 480);
    if (figure.layout.yaxis && figure.layout.yaxis.scaleanchor) layout.height = Math.min(layout.height, width + 40);
    if (paper.matches) Object.assign(layout, { autosize: false, width });
    Plotly.react(plot, figure.data, layout, { displayModeBar: false, responsive: true });
  }

  function onThemeChange(redraw) {
    for (const query of [paper, matchMedia("(prefers-color-scheme: dark)")]) query.addEventListener("change", redraw);
    document.addEventListener("abaton-theme", redraw);
  }
  return { draw, onThemeChange };
})();

(function () {
  const data = document.getElementById("figures");
  if (!data) return;
  const figures = JSON.parse(data.textContent);
  const redraw = () => {
    for (const figure of document.querySelectorAll("[data-figure]")) {
      abaton.draw(figure.querySelector(".plot"), figures[figure.dataset.figure]);
    }
    document.body.dataset.drawn = "1";
  };
  abaton.onThemeChange(redraw);
  document.addEventListener("toggle", redraw, true);
  redraw();
})();
