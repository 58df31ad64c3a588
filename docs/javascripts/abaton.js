// Accessibility of code blocks (WCAG 2.1 AA): blocks that scroll can be focused, copy buttons are not landmarks.
function improveCodeBlocks() {
  for (const code of document.querySelectorAll("pre > code")) {
    if (code.scrollWidth > code.clientWidth && code.tabIndex !== 0) code.tabIndex = 0;
  }
  for (const bar of document.querySelectorAll("nav.md-code__nav:not([role])")) bar.setAttribute("role", "none");
}

new MutationObserver(improveCodeBlocks).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", improveCodeBlocks);
improveCodeBlocks();
