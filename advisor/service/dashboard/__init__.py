"""The dashboard: pages that the service itself renders.

`views` makes frozen values from messages and rows (pure), `templates` turns them into HTML, `pages` answers requests.
It reads through the servicers that answer the API, so what a caller may not see there is not seen here either.
"""
