// Small helpers for the page's elements. Words of others enter as text, never as markup.

/** @param {string} id @returns {any} */
export const by = (id) => document.getElementById(id);

/** @param {string} tag @param {Record<string, string>} [marks] @param {...(Node | string)} inside @returns {HTMLElement} */
export function made(tag, marks = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(marks)) element.setAttribute(name, value);
  element.append(...inside);
  return element;
}

/** Show a section and bring whoever uses the page to its beginning. @param {string} id @param {boolean} [there] */
export function show(id, there = true) {
  by(id).hidden = false;
  if (there) by(`${id}-title`)?.focus();
}

/** @param {...string} ids */
export function hide(...ids) {
  for (const id of ids) by(id).hidden = true;
}

/** A list of terms and what they mean. @param {[string, string][]} pairs */
export function facts(pairs) {
  return made("dl", {}, ...pairs.filter(([, value]) => value).flatMap(([name, value]) => [made("dt", {}, name), made("dd", {}, value)]));
}
