// What the worker needs of Pyodide; the file itself is put beside it when the page is built.
export function loadPyodide(options: object): Promise<any>;
