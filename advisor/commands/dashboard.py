"""`advisor dashboard`: the pages in a browser on this host, for whoever runs the command, while it runs."""

import asyncio
import os
import signal
import socket
import ssl
import webbrowser
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import httpx
import typer

from advisor.clock import SystemClock
from advisor.commands.options import ConfigOption, load_config
from advisor.commands.output import CommandError
from advisor.loopback import ADDRESS, Loopback
from advisor.service.http.serving import HttpServer

app = typer.Typer(rich_markup_mode=None)

CONNECTIONS_MAX = 256
SECONDS = 30.0


@app.command()
def dashboard(
    url: Annotated[
        str, typer.Option(help="HTTPS address of an advisor on another host; with --token-file. Default: this host's.")
    ] = "",
    http_socket: Annotated[
        Path | None, typer.Option("--socket", help="The service's Unix socket for HTTP. Default: as configured.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0: any that is free.")] = 0,
    hours: Annotated[float, typer.Option(min=0.01, max=24, help="How long the page is good for at most.")] = 12.0,
    browser: Annotated[bool, typer.Option(help="Open it in your browser, where there is one.")] = True,
    configuration: ConfigOption = None,
) -> None:
    """Show the dashboard on 127.0.0.1 to you alone: its address can be opened once. It ends with this command.

    \b
    Examples:
      advisor dashboard
      ssh -t -L 8080:127.0.0.1:8080 ctl advisor dashboard --port 8080 --no-browser
      advisor dashboard --url https://advisor.example:8444 --token-file ~/.advisor-token
    """
    client = _far(url) if url else _here(http_socket, configuration)
    try:
        asyncio.run(_show(client, port=port, hours=hours, browser=browser, look_first=bool(url)))
    except OSError as error:
        raise CommandError(f"127.0.0.1:{port} cannot be listened on: {error.strerror}") from None


def _here(given: Path | None, configuration: Path | None) -> httpx.AsyncClient:
    path = given or load_config(configuration).config.service.http_path
    if not path.is_socket():
        if os.environ.get("ADVISOR_SERVER"):
            raise CommandError(
                "--server is for commands: give --url https://host:port, that of service.listen.http", code=2
            )
        raise CommandError(f"nothing listens on {path}: start `advisor serve`, or give --socket")
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    return httpx.AsyncClient(transport=transport, base_url="http://advisor", timeout=_timeout(), trust_env=False)


def _far(url: str) -> httpx.AsyncClient:
    if not url.startswith("https://"):
        raise CommandError(f"--url {url}: write https://host:port", code=2)
    named = os.environ.get("ADVISOR_TOKEN_FILE", "")
    if not named:
        raise CommandError("--url: give --token-file, by which the advisor knows you", code=2)
    authority = os.environ.get("ADVISOR_CA_FILE", "") or None
    try:
        token = Path(named).read_text(encoding="utf-8").strip()
        verify = ssl.create_default_context(cafile=authority)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{named} or {authority or 'the system’s authorities'} cannot be used: {error}") from None
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(verify=verify, base_url=url, headers=headers, timeout=_timeout(), trust_env=False)


def _timeout() -> httpx.Timeout:
    """A page that is kept up to date may say nothing for a while."""
    return httpx.Timeout(SECONDS, read=None)


async def _look(client: httpx.AsyncClient) -> None:
    """A wrong address, authority or token is told here, not by the first page that fails."""
    try:
        answer = await client.get("/api/v1/status", timeout=SECONDS)
        said = answer.json() if answer.is_error else {}
    except (httpx.HTTPError, ValueError) as error:
        text = str(error) or type(error).__name__
        raise CommandError(f"{client.base_url} does not answer as an advisor does ({text[:200]})") from None
    if answer.is_error:
        detail = said.get("detail") if isinstance(said, dict) else None
        raise CommandError(f"{client.base_url}: {detail or f'status {answer.status_code}'}")


async def _show(client: httpx.AsyncClient, *, port: int, hours: float, browser: bool, look_first: bool) -> None:
    if look_first:
        await _look(client)
    listener = socket.create_server((ADDRESS, port), family=socket.AF_INET)
    listener.setblocking(False)
    clock = SystemClock()
    page = Loopback(client, port=listener.getsockname()[1], clock=clock, hours=hours)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.aclose)
        server = HttpServer(page, listener, connections_max=CONNECTIONS_MAX)
        stack.push_async_callback(server.stop)
        await server.start()
        print(f"open once, within 5 minutes: {page.url}", flush=True)
        print("the page is yours alone, and ends with this command (Ctrl-C)", flush=True)
        if browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")):
            await asyncio.to_thread(webbrowser.open, page.url)
        try:
            async with asyncio.timeout(hours * 3600):
                await stop.wait()
        except TimeoutError:
            print("the page has been good long enough: run it again", flush=True)
