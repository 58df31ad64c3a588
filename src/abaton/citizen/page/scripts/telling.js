// The study in plain words, whether somebody may take part, and what has to be ticked.
import { by, facts, made } from "./dom.js";
import { filled } from "./texts.js";

/** @typedef {import("./texts.js").Texts} Texts */

/** @param {string} day @param {string} language */
export const dayText = (day, language) =>
  day ? new Intl.DateTimeFormat(language, { dateStyle: "long", timeZone: "UTC" }).format(new Date(`${day.slice(0, 10)}T00:00:00Z`)) : "";

/** One criterion as a line. @param {any} item @param {Texts} t */
export function criterion(item, t) {
  const words = [t.criteria[item.what] ?? item.what];
  if (item.terms.length) words.push(item.terms.join(` ${t.or} `));
  if (item.sex.length) words.push(item.sex.map((/** @type {string} */ each) => t.sex[each]).join(` ${t.or} `));
  for (const [name, value] of Object.entries(item.bounds)) words.push(filled(t.bounds[name], { value: `${value} ${item.unit}`.trim() }));
  return `${item.exclude ? `${t.not} ` : ""}${words.join(" ")}`;
}

/** @param {string} path @param {Texts} t */
export function element(path, t) {
  return path.split(".").map((part) => t.elements[part] ?? part.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase()).join(" › ");
}

/** The study before Python is there: what its document says itself. @param {any} content @param {Texts} t */
export function drawEarly(content, t) {
  by("title").textContent = content.study.title;
  by("study-words").replaceChildren(facts([[t.question, content.study.question ?? ""], [t.who_asks, content.centre.name]]));
}

/** @param {any} study @param {Texts} t @param {string} language */
export function drawStudy(study, t, language) {
  const needs = study.needs.map((/** @type {any} */ need) => {
    const parts = need.elements.map((/** @type {string} */ name) => element(name, t)).join(", ");
    const of = need.terms.length ? ` (${need.terms.join(", ")})` : "";
    return `${t.topics[need.type] ?? need.type}${parts ? `: ${parts}` : ""}${of}`;
  });
  by("title").textContent = study.title;
  document.title = study.title;
  const contacts = study.contacts.map((/** @type {any} */ each) => [each.name, ...each.ways].filter(Boolean).join(", "));
  by("study-words").replaceChildren(
    facts([
      [t.question, study.question],
      [t.who_asks, `${study.centre}, ${study.place}`],
      [t.ask_them, contacts.join("\n")],
      [t.how_long, filled(t.how_long_text, { until: dayText(study.until, language), kept: dayText(study.kept_until, language) })],
      [t.what_needed, needs.join("\n")],
      [t.what_happens, t.happens[study.mechanism] + " " + t.dates[study.dates]],
      [t.risks, t.risks_text],
      [t.rights, t.rights_text],
      [t.legal, study.legal_basis],
      [t.document, `${study.id}, ${study.version}\n${study.hash}`],
    ]),
  );
}

/** @param {any} judged @param {any} study @param {Texts} t */
export function drawEligible(judged, study, t) {
  by("eligible-text").textContent = judged.eligible ? t.eligible_yes : t.eligible_no;
  by("eligible-list").replaceChildren(
    ...judged.verdicts.map((/** @type {any} */ each, /** @type {number} */ i) =>
      made("li", {}, `${t.answers[each.answer]} ${criterion(study.criteria[i], t)}. ${t.reasons[each.reason] ?? each.reason}`)),
  );
}

/** @param {any} study @param {Texts} t @param {() => void} changed */
export function drawStatements(study, t, changed) {
  const lines = [...t.statements, ...Object.values(study.statements)];
  by("consent-text").textContent = study.consent;
  by("statements").replaceChildren(
    ...lines.map((line) => {
      const box = made("input", { type: "checkbox" });
      box.addEventListener("change", changed);
      return made("li", {}, made("label", {}, box, made("span", {}, line)));
    }),
  );
  by("code-field").hidden = study.admission !== "code";
}

/** What was ticked, or nothing if something is not. @returns {string[] | null} */
export function ticked() {
  const labels = [...by("statements").querySelectorAll("label")];
  return labels.every((label) => label.querySelector("input").checked) ? labels.map((label) => label.textContent) : null;
}
