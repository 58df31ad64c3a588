// The page's side of the worker in which Python runs.

export class Python {
  /** @param {string} place @param {(stage: string) => void} progress */
  constructor(place, progress) {
    /** @type {Map<number, { resolve: (answer: any) => void, reject: (error: Error) => void }>} */
    this.waiting = new Map();
    this.number = 0;
    this.worker = new Worker(`${place}worker.js`, { type: "module" });
    this.worker.addEventListener("error", () => progress("failed"));
    this.worker.addEventListener("message", ({ data }) => {
      if (data.stage) return progress(data.stage);
      const waits = this.waiting.get(data.id);
      this.waiting.delete(data.id);
      if (data.error) waits?.reject(new Error(data.error));
      else waits?.resolve(data.answer);
    });
  }

  /** @param {string} call @param {...unknown} given @returns {Promise<any>} */
  ask(call, ...given) {
    return new Promise((resolve, reject) => {
      this.waiting.set(++this.number, { resolve, reject });
      this.worker.postMessage({ id: this.number, call, given });
    });
  }

  /** The answer to a call that answers in JSON. @param {string} call @param {...unknown} given @returns {Promise<any>} */
  async told(call, ...given) {
    return JSON.parse(await this.ask(call, ...given));
  }
}
