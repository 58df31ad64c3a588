// Helpers for DOM elements. Foreign text is inserted as text, never as markup.

/** Return the element with an id. @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

/** Create an element. @param {string} tag @param {Record<string, string>} [attributes] @param {...(Node | string)} children @returns {HTMLElement} */
export function create(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Show a section and move the focus to its heading. @param {string} id @param {boolean} [focus] */
export function show(id, focus = true) {
  byId(id).hidden = false;
  if (focus) byId(`${id}-title`)?.focus();
}

/** @param {...string} ids */
export function hide(...ids) {
  for (const id of ids) byId(id).hidden = true;
}

/** Return a definition list. @param {[string, string][]} pairs */
export function facts(pairs) {
  return create("dl", {}, ...pairs.filter(([, value]) => value).flatMap(([name, value]) => [create("dt", {}, name), create("dd", {}, value)]));
}
