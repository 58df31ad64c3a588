// Draws the figures of the server and refreshes them while a run is running.
"use strict";
(function () {
  const page = document.getElementById("run") || document.getElementById("compare");
  if (!page) return;
  const running = page.id === "run" && page.dataset.status === "running";
  const select = document.getElementById("metric");
  const interval = document.getElementById("interval");
  let response = null, metric = "", isFetching = false, isStale = false, etag = "";

  const axis = () => (document.querySelector("input[name=axis]:checked") || { value: "timestamp" }).value;
  const number = (value) => value === null || value === undefined ? "–"
    : typeof value !== "number" ? String(value)
    : Number.isInteger(value) ? value.toLocaleString("en")
    : Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 6 });
  const label = (name) => name === "auroc" ? "AUROC" : name;
  const size = (bytes) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let i = 0;
    while (bytes >= 1000 && i < units.length - 1) { bytes /= 1000; i += 1; }
    return (i ? bytes.toFixed(1) : bytes) + " " + units[i];
  };

  function showTable(figure, data) {
    const box = figure.querySelector(".values");
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const name of data.columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      head.append(cell);
    }
    const numeric = data.columns.map((_, i) => data.rows.every((row) => row[i] === null || typeof row[i] === "number"));
    numeric.forEach((is, i) => { if (is) head.cells[i].className = "n"; });
    const body = table.createTBody();
    for (const row of data.rows) {
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
    if (!response) return;
    for (const figure of document.querySelectorAll("[data-figure]")) {
      const content = response.figures[figure.dataset.figure];
      const plot = figure.querySelector(".plot");
      const empty = !content || !content.data.some((trace) => (trace.x || trace.y || []).length);
      figure.classList.toggle("empty", empty);
      if (empty) { if (!plot.firstChild) plot.textContent = "No data yet."; continue; }
      if (plot.textContent === "No data yet.") plot.textContent = "";
      abaton.draw(plot, content);
      if (figure.querySelector("details").open) showTable(figure, content.table);
    }
    for (const box of document.querySelectorAll("[data-table]")) {
      const html = response.tables[box.dataset.table];
      if (html === undefined) continue;
      const hasFocus = box.contains(document.activeElement);
      const left = (box.firstElementChild || { scrollLeft: 0 }).scrollLeft;
      box.innerHTML = html;  // rendered by the server, every value escaped
      if (box.firstElementChild) box.firstElementChild.scrollLeft = left;
      if (hasFocus && box.firstElementChild) box.firstElementChild.focus();
    }
    if (select) {
      const names = [...select.options].map((option) => option.value);
      if (names.join() !== response.metrics.join()) {
        select.replaceChildren(...response.metrics.map((name) => new Option(label(name), name)));
      }
      select.value = response.metric;
      select.disabled = !response.metrics.length;
    }
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
  }

  async function refresh() {
    if (isFetching) { isStale = true; return; }
    isFetching = true;
    const query = new URLSearchParams(page.dataset.query || "");
    query.set("axis", axis());
    if (metric) query.set("metric", metric);
    if (interval && interval.value === "first") query.set("interval", "first");
    try {
      const reply = await fetch(`${page.dataset.url}/figures?${query}`);
      if (reply.status === 401) { location.reload(); return; }
      if (reply.ok && reply.headers.get("etag") !== etag) {
        etag = reply.headers.get("etag");
        response = await reply.json();
        draw();
      }
    } finally {
      isFetching = false;
      if (isStale) { isStale = false; refresh(); }
    }
  }

  function showState(state) {
    const shown = {
      version: state.version.toLocaleString("en"), updates: state.updates.toLocaleString("en"), bytes: size(state.bytes),
      timestamp: state.timestamp.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 }) + " s",
      wall_time: state.wall_time.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 }) + " s",
    };
    const name = "auroc" in state.metrics ? "auroc" : Object.keys(state.metrics)[0];
    for (const [key, value] of Object.entries(shown)) {
      const cell = document.querySelector(`[data-state=${key}]`);
      if (cell && cell.textContent !== value) cell.textContent = value;
    }
    const cell = document.querySelector("[data-state=result]");
    if (cell && name) { cell.textContent = state.metrics[name].toFixed(3); cell.previousElementSibling.textContent = label(name); }
    if (state.status !== page.dataset.status) {
      page.dataset.status = state.status;
      const badge = document.createElement("span");
      badge.className = "badge " + state.status;
      badge.textContent = state.status;
      document.getElementById("status").replaceChildren(badge);
      document.getElementById("notice").textContent = "The run is " + state.status + ".";
    }
  }

  function watch() {
    const source = new EventSource(`${page.dataset.url}/live`);
    let refreshed = 0;
    source.addEventListener("state", (event) => {
      showState(JSON.parse(event.data));
      const now = Date.now();
      if (!document.hidden && now - refreshed > 1900) { refreshed = now; refresh(); }
    });
    source.addEventListener("end", () => { source.close(); refresh(); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  }

  for (const radio of document.querySelectorAll("input[name=axis]")) radio.addEventListener("change", refresh);
  if (select) select.addEventListener("change", () => { metric = select.value; refresh(); });
  if (interval) interval.addEventListener("change", refresh);
  for (const details of document.querySelectorAll("figure details")) {
    details.addEventListener("toggle", () => {
      const figure = details.closest("[data-figure]");
      const content = response && response.figures[figure.dataset.figure];
      if (details.open && content) showTable(figure, content.table);
    });
  }
  abaton.onThemeChange(draw);
  refresh();
  if (running) watch();
})();
