// Applies the selected theme before the page is drawn.
"use strict";
(function () {
  let selected = "";
  try { selected = localStorage.getItem("abaton-theme") || ""; } catch { selected = ""; }
  if (selected) document.documentElement.dataset.theme = selected;
  const names = ["", "light", "dark"];
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    if (!button) return;
    const showTheme = () => { button.textContent = "Theme: " + (document.documentElement.dataset.theme || "system"); };
    showTheme();
    button.addEventListener("click", () => {
      const now = document.documentElement.dataset.theme || "";
      const next = names[(names.indexOf(now) + 1) % names.length];
      if (next) document.documentElement.dataset.theme = next;
      else delete document.documentElement.dataset.theme;
      try { localStorage.setItem("abaton-theme", next); } catch { /* storage is disabled */ }
      showTheme();
      document.dispatchEvent(new Event("abaton-theme"));
    });
  });
})();
