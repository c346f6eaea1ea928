"""Notices by e-mail, with the standard library's client, in a thread.

All messages about one incident are one thread (`References`), and a notice has the same `Message-ID` however often it
is tried, by which mail stores that keep each message once know it. The text is plain; names and log lines cannot get
into headers other than the subject, which holds no line break.
"""

import asyncio
import re
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path

from advisor.core.model import Unavailable
from advisor.core.words import UnavailableReason
from advisor.ports import Clock, Notice, Undelivered
from connectors.notify import wording
from connectors.web.access import AccessError, secret_of

SUBJECT_CHARACTERS_MAX = 150
USER = "{user}"  # in a recipient
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")


class Mail:
    """Implements `Notifier`. `tls`: "starttls", "tls" from the first byte, or "none" (a relay on this host).

    `{user}` in a recipient is the user whose jobs a notice is about; it is about one user's only then.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str,
        port: int,
        sender: str,
        recipients: tuple[str, ...],
        clock: Clock,
        tls: str = "starttls",
        user: str = "",
        password_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        self.name = name
        self._host, self._port, self._tls = host, port, tls
        self._sender, self._recipients, self._clock = sender, recipients, clock
        self._user, self._password_file, self._ca_file = user, password_file, ca_file
        self._seconds = timeout_seconds

    async def send(self, notice: Notice) -> Undelivered | None:
        recipients = addresses(self._recipients, notice)
        if not recipients:
            return self._failed(UnavailableReason.NOT_CONFIGURED, "the job's user has a name that no address can have")
        return await asyncio.to_thread(self._try, self.message(notice), recipients)

    async def check(self) -> Unavailable | None:
        """Everything but a message: connection, TLS, log-in, and whether sender and recipients are taken."""
        fixed = tuple(address for address in self._recipients if USER not in address)
        answer = await asyncio.to_thread(self._try, None, fixed)
        return answer.unavailable if answer is not None else None

    async def close(self) -> None:
        """Each notice has a connection of its own: they are few."""

    def message(self, notice: Notice) -> EmailMessage:
        made = EmailMessage()
        made["From"] = self._sender
        made["To"] = ", ".join(addresses(self._recipients, notice))
        made["Subject"] = wording.subject(notice)[:SUBJECT_CHARACTERS_MAX]
        made["Date"] = format_datetime(self._clock.now())
        made["Message-ID"] = f"<{notice.key}@recovery-advisor>"
        incidents = {item.incident for item in notice.items}
        if len(incidents) == 1:
            made["References"] = f"<incident-{incidents.pop()}@recovery-advisor>"
        made["Auto-Submitted"] = "auto-generated"
        said = wording.lines(notice)
        if self._to_users:
            said += [f"What it means for your job: advisor explain {job}" for job in _jobs(notice)]
        made.set_content("\n".join(said) + "\n")
        return made

    @property
    def _to_users(self) -> bool:
        return any(USER in address for address in self._recipients)

    def _try(self, message: EmailMessage | None, recipients: tuple[str, ...]) -> Undelivered | None:
        """In a thread. What fails after the server took the message is no matter; before it was begun it is certain."""
        handed = taken = False
        try:
            with self._connected() as server:
                if message is None:
                    return self._asked(server, recipients)
                handed = True
                server.send_message(message, self._sender, recipients)  # some got it: not once more for the rest
                taken = True
        except AccessError as error:
            return self._failed(UnavailableReason.PERMISSION, str(error))
        except smtplib.SMTPAuthenticationError:
            return self._failed(UnavailableReason.PERMISSION, f"{self._host} does not take user and password")
        except smtplib.SMTPResponseException as error:
            return None if taken else self._failed(UnavailableReason.REFUSED, f"{self._host} answers {error.smtp_code}")
        except smtplib.SMTPRecipientsRefused:
            return self._failed(UnavailableReason.REFUSED, f"{self._host} takes no mail to any recipient")
        except smtplib.SMTPNotSupportedError as error:
            return self._failed(UnavailableReason.NOT_CONFIGURED, f"{self._host}: {error}")
        except TimeoutError:
            text = f"{self._host}:{self._port}: no answer within {self._seconds:g} s"
            return None if taken else self._failed(UnavailableReason.TIMEOUT, text, uncertain=handed)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            text = f"{self._host}:{self._port}: {type(error).__name__}"
            return None if taken else self._failed(UnavailableReason.REFUSED, text, uncertain=handed)
        return None

    def _asked(self, server: smtplib.SMTP, recipients: tuple[str, ...]) -> Undelivered | None:
        code, _ = server.mail(self._sender)
        if code >= 400:
            return self._failed(UnavailableReason.REFUSED, f"{self._host} takes no mail from {self._sender}")
        for recipient in recipients:
            code, _ = server.rcpt(recipient)
            if code >= 400:
                return self._failed(UnavailableReason.REFUSED, f"{self._host} takes no mail to {recipient}")
        server.rset()
        return None

    def _connected(self) -> smtplib.SMTP:
        context = ssl.create_default_context(cafile=str(self._ca_file) if self._ca_file is not None else None)
        if self._tls == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(self._host, self._port, timeout=self._seconds, context=context)
        else:
            server = smtplib.SMTP(self._host, self._port, timeout=self._seconds)
        try:
            if self._tls == "starttls":
                server.starttls(context=context)
            server.ehlo_or_helo_if_needed()
            if self._password_file is not None:
                server.login(self._user, secret_of(self._password_file))
        except BaseException:
            server.close()
            raise
        return server

    def _failed(self, reason: UnavailableReason, detail: str, *, uncertain: bool = False) -> Undelivered:
        return Undelivered(unavailable=Unavailable(source=self.name, reason=reason, detail=detail), uncertain=uncertain)


def addresses(recipients: tuple[str, ...], notice: Notice) -> tuple[str, ...]:
    """Whom a notice goes to. An account that cannot stand in an address gets none: no name may become another one."""
    users = {item.user for item in notice.items}
    account = users.pop() if len(users) == 1 else ""
    known = _ACCOUNT.fullmatch(account) is not None
    return tuple(address.replace(USER, account) for address in recipients if known or USER not in address)


def _jobs(notice: Notice) -> list[str]:
    return list(dict.fromkeys(wording.harmless(item.job_id, 40) for item in notice.items))[: wording.ITEMS_SHOWN]
