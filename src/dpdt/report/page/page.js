"use strict";
// Draws every chart of the page. Arrow keys walk along a chart that has the focus.
for (const figure of document.querySelectorAll("figure.chart")) {
  const plot = figure.querySelector(".plot");
  const { data, layout } = JSON.parse(figure.querySelector("script").textContent);
  const config = { responsive: true, displayModeBar: false, scrollZoom: false, doubleClick: false };
  Plotly.newPlot(plot, data, layout, config);
  for (const box of figure.querySelectorAll("input[data-trace]")) {
    box.addEventListener("change", () =>
      Plotly.restyle(plot, { visible: box.checked }, [Number(box.dataset.trace)]));
  }
  walk(plot, data);
}

function walk(plot, data) {
  let curve = 0;
  let point = -1;
  const usable = (i) => data[i].hoverinfo !== "skip" && data[i].visible !== false;
  plot.addEventListener("keydown", (event) => {
    const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const across = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!along && !across) return;
    event.preventDefault();
    const curves = data.map((_, i) => i).filter(usable);
    if (!curves.length) return;
    if (across || !usable(curve)) {
      const here = Math.max(curves.indexOf(curve), 0);
      curve = curves[(here + (across || 0) + curves.length) % curves.length];
    }
    const length = data[curve].x.length;
    point = Math.min(Math.max(point + (along || 0), 0), length - 1);
    Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: point }]);
  });
  plot.addEventListener("blur", () => Plotly.Fx.unhover(plot));
}

// Tables are open on paper.
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.dataset.closed = "";
    details.open = true;
  }
});
window.addEventListener("afterprint", () => {
  for (const details of document.querySelectorAll("details[data-closed]")) {
    delete details.dataset.closed;
    details.open = false;
  }
});
