"""The citizen's page: see what of your records would leave, say yes, send it sealed, and take it back.

The same Python runs in a browser (Pyodide) and here: :mod:`abaton.citizen.browser_api` is all that the page calls. It needs
no numbers, no database and no cryptography; keys and sealing are the browser's own.
"""
