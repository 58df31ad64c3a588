// Calls from the page to the Python worker.

export class Python {
  /** @param {string} baseUrl @param {(stage: string) => void} progress */
  constructor(baseUrl, progress) {
    /** @type {Map<number, { resolve: (result: any) => void, reject: (error: Error) => void }>} */
    this.pendingCalls = new Map();
    this.lastId = 0;
    this.worker = new Worker(`${baseUrl}worker.js`, { type: "module" });
    this.worker.addEventListener("error", () => progress("failed"));
    this.worker.addEventListener("message", ({ data }) => {
      if (data.stage) return progress(data.stage);
      const pending = this.pendingCalls.get(data.id);
      this.pendingCalls.delete(data.id);
      if (data.error) pending?.reject(new Error(data.error));
      else pending?.resolve(data.result);
    });
  }

  /** Call a Python function. @param {string} name @param {...unknown} args @returns {Promise<any>} */
  call(name, ...args) {
    return new Promise((resolve, reject) => {
      this.pendingCalls.set(++this.lastId, { resolve, reject });
      this.worker.postMessage({ id: this.lastId, name, args });
    });
  }

  /** Call a Python function that returns JSON. @param {string} name @param {...unknown} args @returns {Promise<any>} */
  async callJson(name, ...args) {
    return JSON.parse(await this.call(name, ...args));
  }
}
