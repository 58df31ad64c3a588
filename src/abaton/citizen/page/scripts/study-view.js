// Study description, eligibility and consent statements.
import { byId, facts, create } from "./dom.js";
import { fill } from "./texts.js";

/** @typedef {import("./texts.js").Texts} Texts */

/** @param {string} day @param {string} language */
export const formatDay = (day, language) =>
  day ? new Intl.DateTimeFormat(language, { dateStyle: "long", timeZone: "UTC" }).format(new Date(`${day.slice(0, 10)}T00:00:00Z`)) : "";

/** Return a criterion as text. @param {any} item @param {Texts} t */
export function criterionText(item, t) {
  const texts = [t.criteria[item.type] ?? item.type];
  if (item.codes.length) texts.push(item.codes.join(` ${t.or} `));
  if (item.sex.length) texts.push(item.sex.map((/** @type {string} */ value) => t.sex[value]).join(` ${t.or} `));
  for (const [name, bound] of Object.entries(item.bounds)) texts.push(fill(t.bounds[name], { value: `${bound} ${item.unit}`.trim() }));
  return `${item.exclude ? `${t.not} ` : ""}${texts.join(" ")}`;
}

/** @param {string} path @param {Texts} t */
export function elementText(path, t) {
  return path.split(".").map((part) => t.elements[part] ?? part.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase()).join(" › ");
}

/** Draw title, question and centre from the study document, before Python is ready. @param {any} content @param {Texts} t */
export function drawSummary(content, t) {
  byId("title").textContent = content.study.title;
  byId("study-texts").replaceChildren(facts([[t.question, content.study.question ?? ""], [t.who_asks, content.centre.name]]));
}

/** @param {any} study @param {Texts} t @param {string} language */
export function drawStudy(study, t, language) {
  const requirements = study.requirements.map((/** @type {any} */ requirement) => {
    const parts = requirement.elements.map((/** @type {string} */ name) => elementText(name, t)).join(", ");
    const codes = requirement.codes.length ? ` (${requirement.codes.join(", ")})` : "";
    return `${t.topics[requirement.type] ?? requirement.type}${parts ? `: ${parts}` : ""}${codes}`;
  });
  byId("title").textContent = study.title;
  document.title = study.title;
  const contacts = study.contacts.map((/** @type {any} */ contact) => [contact.name, ...contact.telecom].filter(Boolean).join(", "));
  byId("study-texts").replaceChildren(
    facts([
      [t.question, study.question],
      [t.who_asks, `${study.centre}, ${study.location}`],
      [t.contact, contacts.join("\n")],
      [t.how_long, fill(t.how_long_text, { until: formatDay(study.until, language), deleted: formatDay(study.retained_until, language) })],
      [t.what_needed, requirements.join("\n")],
      [t.what_happens, t.mechanisms[study.mechanism] + " " + t.dates[study.dates]],
      [t.risks, t.risks_text],
      [t.rights, t.rights_text],
      [t.legal, study.legal_basis],
      [t.document, `${study.id}, ${study.version}\n${study.hash}`],
    ]),
  );
}

/** @param {any} eligibility @param {any} study @param {Texts} t */
export function drawEligible(eligibility, study, t) {
  byId("eligible-text").textContent = eligibility.eligible ? t.eligible_yes : t.eligible_no;
  byId("eligible-list").replaceChildren(
    ...eligibility.criteria.map((/** @type {any} */ result, /** @type {number} */ i) =>
      create("li", {}, `${t.answers[result.answer]} ${criterionText(study.criteria[i], t)}. ${t.reasons[result.reason] ?? result.reason}`)),
  );
}

/** @param {any} study @param {Texts} t @param {() => void} changed */
export function drawStatements(study, t, changed) {
  const statements = [...t.statements, ...Object.values(study.statements)];
  byId("consent-text").textContent = study.consent;
  byId("statements").replaceChildren(
    ...statements.map((statement) => {
      const box = create("input", { type: "checkbox" });
      box.addEventListener("change", changed);
      return create("li", {}, create("label", {}, box, create("span", {}, statement)));
    }),
  );
  byId("code-field").hidden = study.admission !== "code";
}

/** Return the statements if all are ticked; otherwise null. @returns {string[] | null} */
export function tickedStatements() {
  const labels = [...byId("statements").querySelectorAll("label")];
  return labels.every((label) => label.querySelector("input").checked) ? labels.map((label) => label.textContent) : null;
}
