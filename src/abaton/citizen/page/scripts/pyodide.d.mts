// Part of Pyodide that the worker uses; the build adds the module.
export function loadPyodide(options: object): Promise<any>;
