// Texts in the citizen's language; a new language is one file.

/** @typedef {Record<string, any>} Texts */

export const LANGUAGES = { en: "English", de: "Deutsch" };

/** Return the best supported language. @param {readonly string[]} preferred */
export function bestLanguage(preferred) {
  const known = Object.keys(LANGUAGES);
  return preferred.map((code) => code.slice(0, 2).toLowerCase()).find((code) => known.includes(code)) ?? "en";
}

/** @param {string} baseUrl @param {string} language @returns {Promise<Texts>} */
export async function loadTexts(baseUrl, language) {
  const [translation, english] = await Promise.all(
    [language, "en"].map(async (code) => (await fetch(`${baseUrl}${code}.json`)).json()),
  );
  return { ...english, ...translation };
}

/** Fill the placeholders of a text. @param {string} text @param {Record<string, string | number>} values */
export function fill(text, values) {
  return text.replace(/\{(\w+)\}/g, (placeholder, name) => String(values[name] ?? placeholder));
}
