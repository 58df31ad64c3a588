// Before and after: every value crossed out, changed or kept, by topic, with the reason, and a search over all of them.
import { by, made } from "./dom.js";
import { element } from "./telling.js";
import { filled } from "./texts.js";

/** @typedef {[string, unknown, unknown, "kept" | "changed" | "removed" | "added"]} Row */
/** @typedef {{ cards: { type: string, rows: Row[] }[], values: number, leave: number, counts: Record<string, number>,
 *   reasons: Record<string, [string, string]>, bytes: number, sha256: string }} Preview */

const AT_ONCE = 150;

export class Previewing {
  /** @param {Preview} preview @param {import("./texts.js").Texts} t @param {string} language */
  constructor(preview, t, language) {
    this.preview = preview;
    this.t = t;
    this.number = new Intl.NumberFormat(language);
    /** @type {Map<string, Row[]>} */
    this.topics = new Map();
    for (const { type, rows } of preview.cards) {
      const topic = t.topics[type] ?? t.topics.other;
      const known = this.topics.get(topic);
      if (known) for (const row of rows) known.push(row);
      else this.topics.set(topic, [...rows]);
    }
  }

  draw() {
    const { values, leave, counts, sha256 } = this.preview;
    by("preview-number").textContent = filled(this.t.leave_number, {
      values: this.number.format(values), leave: this.number.format(leave), added: this.number.format(counts.added ?? 0),
    });
    by("sha256").textContent = sha256;
    this.list();
  }

  /** Draw the topics anew, by what is searched for and whether only what leaves is shown. */
  list() {
    const only = by("only-leaving").checked;
    const wanted = by("search").value.trim().toLowerCase();
    let found = 0;
    const drawn = [];
    for (const [topic, rows] of this.topics) {
      const fitting = rows.filter((row) => (!only || row[3] !== "removed") && (!wanted || this.text(row).includes(wanted)));
      found += fitting.length;
      if (fitting.length) drawn.push(this.topic(topic, fitting, Boolean(wanted) && drawn.length < 3));
    }
    by("topics").replaceChildren(...drawn);
    by("found").textContent = wanted || only ? filled(this.t.found, { number: this.number.format(found) }) : "";
  }

  /** @param {Row} row */
  text([path, before, after]) {
    return `${path} ${element(path, this.t)} ${before ?? ""} ${after ?? ""}`.toLowerCase();
  }

  /** @param {string} name @param {Row[]} rows @param {boolean} open */
  topic(name, rows, open) {
    const leaving = rows.filter((row) => row[3] === "kept" || row[3] === "changed").length;
    const told = filled(this.t.topic_number, { values: this.number.format(rows.length), leave: this.number.format(leaving) });
    const list = made("ul");
    const whole = /** @type {HTMLDetailsElement} */ (made("details", {}, made("summary", {}, `${name}: ${told}`), list));
    const more = made("button", { type: "button", class: "plain" }, this.t.more);
    let shown = 0;
    const add = () => {
      list.append(...rows.slice(shown, shown + AT_ONCE).map((row) => this.row(row)));
      shown += AT_ONCE;
      more.hidden = shown >= rows.length;
    };
    more.addEventListener("click", add);
    whole.addEventListener("toggle", () => {
      if (whole.open && !shown) add();
    });
    whole.append(made("p", {}, more));
    whole.open = open;
    return whole;
  }

  /** @param {Row} row */
  row([path, before, after, fate]) {
    const { t } = this;
    const inside = path.split(".").slice(1).join(".");
    const line = made("li", { class: fate }, made("span", { class: "what" }, element(inside, t)), made("span", { class: "fate" }, `${t.fates[fate]} `));
    if (fate === "removed" || fate === "changed") line.append(made("del", {}, String(before)), " ");
    if (fate === "kept") line.append(made("ins", {}, String(before)));
    if (fate === "changed" || fate === "added") line.append(made("ins", {}, String(after)));
    line.append(made("span", { class: "why" }, this.why(path, fate)));
    return line;
  }

  /** Why, by the rule of the nearest place that has one. @param {string} path @param {string} fate */
  why(path, fate) {
    const { reasons, added } = this.t;
    if (fate === "added") return added;
    const parts = path.split(".");
    for (let size = parts.length; size > 0; size--) {
      const rule = this.preview.reasons[parts.slice(0, size).join(".")];
      const reason = rule?.[fate === "removed" ? 1 : 0] || (fate === "changed" ? rule?.[1] : "");
      if (reason) return reasons[reason] ?? reason;
    }
    return reasons[fate];
  }
}
