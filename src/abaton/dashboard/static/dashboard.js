// Draws the figures that the server has added up, and keeps them fresh while a run goes on.
"use strict";
(function () {
  const place = document.getElementById("run") || document.getElementById("compare");
  if (!place) return;
  const running = place.id === "run" && place.dataset.status === "running";
  const select = document.getElementById("metric");
  const stretch = document.getElementById("stretch");
  let last = null, metric = "", asking = false, again = false, tag = "";

  const axis = () => (document.querySelector("input[name=axis]:checked") || { value: "at" }).value;
  const number = (value) => value === null || value === undefined ? "–"
    : typeof value !== "number" ? String(value)
    : Number.isInteger(value) ? value.toLocaleString("en")
    : Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 6 });
  const named = (name) => name === "auroc" ? "AUROC" : name;
  const size = (bytes) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let i = 0;
    while (bytes >= 1000 && i < units.length - 1) { bytes /= 1000; i += 1; }
    return (i ? bytes.toFixed(1) : bytes) + " " + units[i];
  };

  function tabled(figure, told) {
    const box = figure.querySelector(".numbers");
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const name of told.heads) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      head.append(cell);
    }
    const numeric = told.heads.map((_, i) => told.rows.every((row) => row[i] === null || typeof row[i] === "number"));
    numeric.forEach((is, i) => { if (is) head.cells[i].className = "n"; });
    const body = table.createTBody();
    for (const row of told.rows) {
      const line = body.insertRow();
      row.forEach((value, i) => {
        const cell = document.createElement(i ? "td" : "th");
        if (!i) cell.scope = "row";
        if (numeric[i]) cell.className = "n";
        cell.textContent = number(value);
        line.append(cell);
      });
    }
    const region = document.createElement("div");
    region.className = "scroll";
    region.tabIndex = 0;
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", figure.querySelector("h2").textContent + ", as a table");
    region.append(table);
    box.replaceChildren(region);
  }

  function draw() {
    if (!last) return;
    for (const figure of document.querySelectorAll("[data-figure]")) {
      const drawn = last.figures[figure.dataset.figure];
      const plot = figure.querySelector(".plot");
      const empty = !drawn || !drawn.data.some((trace) => (trace.x || trace.y || []).length);
      figure.classList.toggle("empty", empty);
      if (empty) { if (!plot.firstChild) plot.textContent = "Nothing to draw yet."; continue; }
      if (plot.textContent === "Nothing to draw yet.") plot.textContent = "";
      abaton.draw(plot, drawn);
      if (figure.querySelector("details").open) tabled(figure, drawn.table);
    }
    for (const box of document.querySelectorAll("[data-table]")) {
      const made = last.tables[box.dataset.table];
      if (made === undefined) continue;
      const held = box.contains(document.activeElement);
      const left = (box.firstElementChild || { scrollLeft: 0 }).scrollLeft;
      box.innerHTML = made;  // made by the server, every value escaped
      if (box.firstElementChild) box.firstElementChild.scrollLeft = left;
      if (held && box.firstElementChild) box.firstElementChild.focus();
    }
    if (select) {
      const names = [...select.options].map((option) => option.value);
      if (names.join() !== last.metrics.join()) {
        select.replaceChildren(...last.metrics.map((name) => new Option(named(name), name)));
      }
      select.value = last.metric;
      select.disabled = !last.metrics.length;
    }
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
  }

  async function refresh() {
    if (asking) { again = true; return; }
    asking = true;
    const query = new URLSearchParams(place.dataset.query || "");
    query.set("axis", axis());
    if (metric) query.set("metric", metric);
    if (stretch && stretch.value === "first") query.set("stretch", "first");
    try {
      const answer = await fetch(`${place.dataset.place}/figures?${query}`);
      if (answer.status === 401) { location.reload(); return; }
      if (answer.ok && answer.headers.get("etag") !== tag) {
        tag = answer.headers.get("etag");
        last = await answer.json();
        draw();
      }
    } finally {
      asking = false;
      if (again) { again = false; refresh(); }
    }
  }

  function headed(state) {
    const shown = {
      version: state.version.toLocaleString("en"), updates: state.updates.toLocaleString("en"), bytes: size(state.bytes),
      at: state.at.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 }) + " s",
      wall: state.wall.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 }) + " s",
    };
    const name = "auroc" in state.metrics ? "auroc" : Object.keys(state.metrics)[0];
    for (const [key, value] of Object.entries(shown)) {
      const cell = document.querySelector(`[data-head=${key}]`);
      if (cell && cell.textContent !== value) cell.textContent = value;
    }
    const cell = document.querySelector("[data-head=result]");
    if (cell && name) { cell.textContent = state.metrics[name].toFixed(3); cell.previousElementSibling.textContent = named(name); }
    if (state.status !== place.dataset.status) {
      place.dataset.status = state.status;
      const badge = document.createElement("span");
      badge.className = "badge " + state.status;
      badge.textContent = state.status;
      document.getElementById("status").replaceChildren(badge);
      document.getElementById("told").textContent = "The run is " + state.status + ".";
    }
  }

  function watch() {
    const source = new EventSource(`${place.dataset.place}/live`);
    let due = 0;
    source.addEventListener("head", (event) => {
      headed(JSON.parse(event.data));
      const now = Date.now();
      if (!document.hidden && now - due > 1900) { due = now; refresh(); }
    });
    source.addEventListener("end", () => { source.close(); refresh(); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  }

  for (const radio of document.querySelectorAll("input[name=axis]")) radio.addEventListener("change", refresh);
  if (select) select.addEventListener("change", () => { metric = select.value; refresh(); });
  if (stretch) stretch.addEventListener("change", refresh);
  for (const details of document.querySelectorAll("figure details")) {
    details.addEventListener("toggle", () => {
      const figure = details.closest("[data-figure]");
      const drawn = last && last.figures[figure.dataset.figure];
      if (details.open && drawn) tabled(figure, drawn.table);
    });
  }
  abaton.again(draw);
  refresh();
  if (running) watch();
})();
