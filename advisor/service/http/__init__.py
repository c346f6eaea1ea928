"""Everything that is served over HTTP: one ASGI application made of routes that others supply.

The seam. A part of the HTTP side is a plain function that returns routes, `routes(...) -> list[BaseRoute]`; `app.py`
hands all of them to `compose` (in `application`). What an endpoint can rely on:

* `caller_of(request)` (also `request.state.caller`) is the `Caller`: always there, perhaps `NOBODY`.
* What an endpoint shows or does goes through `await calls.unary(caller, "AuditService/GetDecision", request, Decision)`
  (`advisor.service.calls`) with messages of the contract, as gRPC does: it asks the table who may
  (`advisor.service.access`), narrows a user to his own jobs, and withholds text of logs that the caller may not read.
  What is no method of the contract has an entry there (`require(caller, "GET /metrics")`, `may(...)` to show a button
  or not). Nobody compares roles.
* Whatever it raises is answered as over gRPC (`advisor.service.errors`): `BadRequestError` is 400, `NotFoundError` 404,
  `ForbiddenError` 403 and so on, an absent store 503; anything else is logged and told without detail. Answers to
  errors are problem details (RFC 9457), or a page where the dashboard supplies one and HTML was asked for.
* What changes something is refused when another site's page sends it; a form also holds `csrf_token(request)`, which
  `check_csrf(request, form)` asks back (`browsers`).
* Bodies are bounded (`service.http_body_bytes_max`), connections too (`service.connections_max`).
* Every answer carries the strict security headers (`headers`) and `Cache-Control: no-store`, unless the endpoint set
  another `Cache-Control` (only for files that hold no data). No inline script or style, nothing from elsewhere.
"""
