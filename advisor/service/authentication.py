"""Who calls from afar: by the certificate of his connection or by the bearer token of his call."""

from dataclasses import dataclass, replace

from advisor.service.callers import NOBODY, Caller
from advisor.service.certificates import Certificates
from advisor.service.errors import UnauthenticatedError
from advisor.service.limits import RateLimits
from advisor.service.oidc import Oidc
from advisor.service.tokens import PREFIX, Tokens

TOKEN_CHARACTERS_MAX = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """What is configured of it."""

    limits: RateLimits
    certificates: Certificates
    tokens: Tokens | None = None
    oidc: Oidc | None = None

    def connected(self, der: bytes | None, peer: str) -> Caller:
        """Who a new connection is, by its verified certificate if it showed one."""
        return replace(NOBODY, peer=peer) if der is None else self.certificates.find(der, peer)

    async def caller(self, connected: Caller, authorization: str) -> Caller:
        """Who makes one call: a token, once it is shown, counts. Raises `UnauthenticatedError`, `TooOftenError`."""
        if not authorization:
            return connected
        try:
            return await self._bearer(authorization, connected.peer)
        except UnauthenticatedError:
            self.limits.take_unknown(connected.peer)
            raise

    async def is_known(self, authorization: str) -> bool:
        """Whether a token is good, without counting against anybody when it is not: `caller` does that."""
        try:
            await self._bearer(authorization, "")
        except UnauthenticatedError:
            return False
        return True

    async def _bearer(self, authorization: str, peer: str) -> Caller:
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise UnauthenticatedError("show a token as `Authorization: Bearer …`")
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise UnauthenticatedError("the token is too long")
        if self.tokens is not None and token.startswith(PREFIX):
            return self.tokens.find(token, peer)
        if self.oidc is not None and token.count(".") == 2:
            return await self.oidc.find(token, peer)
        raise UnauthenticatedError("the token is not known")
