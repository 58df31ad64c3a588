"""Citizen page: preview of the records that would leave, consent, sealed transfer and withdrawal.

The same Python runs in the browser (Pyodide) and on a server: the page calls :mod:`abaton.citizen.browser_api` only.
It needs no NumPy, database or cryptography; keys and sealing use the browser's WebCrypto.
"""
