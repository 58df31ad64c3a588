"""Checks of a rendered page: overlapping or cut text, and accessibility violations found by axe."""

from __future__ import annotations

from typing import Any

PHONE, DESKTOP, PAPER = 390, 1280, 718  # pixels; the last is the text width of an A4 page
MODES = {
    "phone": (PHONE, "light", "screen"),
    "phone, dark": (PHONE, "dark", "screen"),
    "desktop": (DESKTOP, "light", "screen"),
    "desktop, dark": (DESKTOP, "dark", "screen"),
    "print": (PAPER, "dark", "print"),
}

_FAULTS = """
const found = [], wide = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth > wide) found.push(`page: ${document.documentElement.scrollWidth} of ${wide}`);
const scrolls = (e) => e.closest('.scroll, select, .skip, .hidden');
const hidden = (e) => !e.checkVisibility({ opacityProperty: true, visibilityProperty: true });
const boxes = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.data.trim() || hidden(parent) || parent.closest('script, style, title, option, .skip, .hidden')) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const box of range.getClientRects()) {
    if (box.width < 1 || box.height < 1) continue;
    const words = node.data.trim().slice(0, 40);
    if (!scrolls(parent) && (box.right > wide + 1 || box.left < -1)) found.push(`cut: ${words}`);
    boxes.push({ box, words, place: parent.closest('.scroll') });
  }
}
boxes.sort((a, b) => a.box.top - b.box.top);
for (let i = 0; i < boxes.length; i += 1) {
  for (let j = i + 1; j < boxes.length && boxes[j].box.top < boxes[i].box.bottom - 3; j += 1) {
    const a = boxes[i], b = boxes[j];
    if (a.place !== b.place) continue;
    const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
    const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
    if (across > 3 && down > 4) found.push(`overlap: ${a.words} | ${b.words}`);
  }
}
for (const plot of document.querySelectorAll('.plot')) {
  const drawn = plot.querySelector('.main-svg');
  if (!drawn || hidden(plot)) continue;
  const [outer, inner] = [plot.getBoundingClientRect(), drawn.getBoundingClientRect()];
  const cut = inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1;
  if (cut) found.push(`figure cut: ${plot.parentElement.dataset.figure}`);
}
return [...new Set(found)];
"""


def show_as(browser: Any, mode: str) -> None:
    """Emulate a phone, a desktop or a printed page, in a light or dark scheme."""
    width, theme, media = MODES[mode]
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [feature]})


def faults(browser: Any) -> list[str]:
    """Return texts that overlap or are cut off, by their boxes; elements that scroll may be wider."""
    return list(browser.execute_script(_FAULTS))


def violations(browser: Any) -> list[tuple[str, list[str]]]:
    """Return the violations that axe reports."""
    from axe_core_python.selenium import Axe

    result = Axe().run(browser)
    return [
        (violation["id"], [node["html"][:160] for node in violation["nodes"][:3]])
        for violation in result["violations"]
    ]
