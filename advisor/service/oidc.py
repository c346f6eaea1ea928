"""Bearer tokens of an OpenID Connect issuer: signature, issuer, audience and times are checked, claims give roles.

Which algorithm a token names is checked against the configured list before anything else, and the list holds only
signatures with a public key: `none` and shared secrets cannot be configured. The issuer's keys are fetched when they
are needed, kept for a while, and fetched again for a key id that is not known, though not more often than a caller's
inventions should make us (RFC 7517, RFC 7519, RFC 8725).
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import jwt
import structlog

from advisor.ports import Clock
from advisor.service.callers import Caller, Proof, Role, granted
from advisor.service.errors import UnauthenticatedError

log = structlog.get_logger(__name__)

DOCUMENT_BYTES_MAX = 512 * 1024
FETCH_SECONDS = 5.0
REFETCH_SECONDS = 10.0
KEYS_MAX = 64
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcTerms:
    """Whose tokens are believed, for whom they must be, and what their claims mean. `roles`: value → role."""

    issuer: str
    audience: str
    jwks_url: str
    algorithms: tuple[str, ...]
    user_claim: str
    roles_claim: str
    roles: Mapping[str, Role]
    leeway_seconds: float
    keys_seconds: float


class KeysUnavailableError(Exception):
    """The issuer's keys could not be had; the text says why."""


class Oidc:
    """`client`: asks the issuer; its certificate authority is set there."""

    def __init__(self, terms: OidcTerms, client: httpx.AsyncClient, clock: Clock) -> None:
        self._terms = terms
        self._client = client
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._tried: float | None = None
        self._fetched: float | None = None
        self._fetching = asyncio.Lock()

    async def close(self) -> None:
        await self._client.aclose()

    async def find(self, token: str, peer: str) -> Caller:
        """Raises `UnauthenticatedError`; its text never holds anything of the token but its claims' names."""
        terms = self._terms
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise UnauthenticatedError("the token is not a signed JWT") from None
        algorithm, name = header.get("alg"), header.get("kid", "")
        if algorithm not in terms.algorithms:
            raise UnauthenticatedError(f"the token's signature is not one of {', '.join(terms.algorithms)}")
        key = await self._key(name if isinstance(name, str) else "")
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(terms.algorithms),
                audience=terms.audience,
                issuer=terms.issuer,
                leeway=timedelta(seconds=terms.leeway_seconds),
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as error:
            raise UnauthenticatedError(f"the token is refused: {_why(error)}") from None
        return self._caller(claims, peer)

    def _caller(self, claims: Mapping[str, Any], peer: str) -> Caller:
        terms = self._terms
        user = claim(claims, terms.user_claim)
        if not isinstance(user, str) or not _ACCOUNT.fullmatch(user):
            raise UnauthenticatedError(f"the token has no claim {terms.user_claim} that is the name of an account")
        given = claim(claims, terms.roles_claim)
        values = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        roles = Role.NONE
        for value in values:
            if isinstance(value, str):
                roles |= terms.roles.get(value, Role.NONE)
        subject = claims.get("sub")
        shown = subject[:200] if isinstance(subject, str) else ""
        return Caller(name=user, roles=granted(roles), proof=Proof.OIDC, credential=shown, peer=peer)

    async def _key(self, name: str) -> jwt.PyJWK:
        now = self._clock.monotonic()
        stale = self._fetched is None or now - self._fetched > self._terms.keys_seconds
        if stale or self._found(name) is None:
            await self._refetch()
        key = self._found(name)
        if key is None:
            raise UnauthenticatedError("the token is signed with a key that the issuer does not name")
        return key

    def _found(self, name: str) -> jwt.PyJWK | None:
        """Without a key id there must be no choice."""
        if name:
            return self._keys.get(name)
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    async def _refetch(self) -> None:
        """Once for all who wait, and not again too soon, whatever came of it."""
        async with self._fetching:
            now = self._clock.monotonic()
            if self._tried is not None and now - self._tried < REFETCH_SECONDS:
                return
            self._tried = now
            try:
                self._keys = await self._fetch_keys()
            except KeysUnavailableError as error:
                # Keys that are known go on being good: the issuer's trouble is not ours.
                log.warning("oidc_keys_unavailable", issuer=self._terms.issuer, problem=str(error))
                return
            self._fetched = now

    async def _fetch_keys(self) -> dict[str, jwt.PyJWK]:
        url = self._terms.jwks_url
        if not url:
            document = await self._fetch(f"{self._terms.issuer.rstrip('/')}/.well-known/openid-configuration")
            url = document.get("jwks_uri", "")
            if document.get("issuer") != self._terms.issuer:
                raise KeysUnavailableError("the discovery document is of another issuer")
            if not isinstance(url, str) or not url.startswith("https://"):
                raise KeysUnavailableError("the discovery document names no https jwks_uri")
        listed = (await self._fetch(url)).get("keys")
        if not isinstance(listed, list):
            raise KeysUnavailableError("the key set is none")
        return self._usable(listed)

    def _usable(self, listed: Sequence[Any]) -> dict[str, jwt.PyJWK]:
        keys = {}
        for item in listed[:KEYS_MAX]:
            if not isinstance(item, dict) or item.get("use", "sig") != "sig" or item.get("kty") == "oct":
                continue
            try:
                key = jwt.PyJWK(item)
            except (jwt.PyJWTError, ValueError, TypeError):
                continue
            name = item.get("kid", "")
            keys[name if isinstance(name, str) else ""] = key
        return keys

    async def _fetch(self, url: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(FETCH_SECONDS), self._client.stream("GET", url) as answer:
                if answer.status_code != 200:
                    raise KeysUnavailableError(f"{url} answers with {answer.status_code}")
                data = bytearray()
                async for part in answer.aiter_bytes():
                    data += part
                    if len(data) > DOCUMENT_BYTES_MAX:
                        raise KeysUnavailableError(f"{url} answers with more than {DOCUMENT_BYTES_MAX} bytes")
            document = httpx.Response(200, content=bytes(data)).json()
        except TimeoutError:
            raise KeysUnavailableError(f"{url} does not answer within {FETCH_SECONDS:g} s") from None
        except (httpx.HTTPError, ValueError) as error:
            raise KeysUnavailableError(f"{url}: {type(error).__name__}") from None
        if not isinstance(document, dict):
            raise KeysUnavailableError(f"{url} answers with no JSON object")
        return document


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name; where there is none of that name, dots lead into tables (`realm_access.roles`)."""
    if name in claims:
        return claims[name]
    here: Any = claims
    for part in name.split("."):
        if not isinstance(here, Mapping):
            return None
        here = here.get(part)
    return here


def _why(error: jwt.PyJWTError) -> str:
    """In words that tell nothing of the token's content."""
    for kind, text in (
        (jwt.ExpiredSignatureError, "it has expired"),
        (jwt.ImmatureSignatureError, "it is not good yet"),
        (jwt.InvalidAudienceError, "it is for another audience"),
        (jwt.InvalidIssuerError, "it is of another issuer"),
        (jwt.MissingRequiredClaimError, "exp, iss or aud is missing"),
        (jwt.InvalidAlgorithmError, "its signature is of another kind than its key"),
        (jwt.InvalidSignatureError, "its signature is wrong"),
    ):
        if isinstance(error, kind):
            return text
    return "it cannot be read"
