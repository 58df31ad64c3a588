// The theme that was chosen, before anything is drawn: no page flashes in the wrong one.
"use strict";
(function () {
  let chosen = "";
  try { chosen = localStorage.getItem("abaton-theme") || ""; } catch { chosen = ""; }
  if (chosen) document.documentElement.dataset.theme = chosen;
  const names = ["", "light", "dark"];
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    if (!button) return;
    const say = () => { button.textContent = "Theme: " + (document.documentElement.dataset.theme || "system"); };
    say();
    button.addEventListener("click", () => {
      const now = document.documentElement.dataset.theme || "";
      const next = names[(names.indexOf(now) + 1) % names.length];
      if (next) document.documentElement.dataset.theme = next;
      else delete document.documentElement.dataset.theme;
      try { localStorage.setItem("abaton-theme", next); } catch { /* a browser that keeps nothing */ }
      say();
      document.dispatchEvent(new Event("abaton-theme"));
    });
  });
})();
