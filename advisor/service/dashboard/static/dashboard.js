// What the pages can do with a script and do without one: live parts, keys, the theme. Everything is on the page before.
"use strict";

(() => {
  const page = document.documentElement;
  const every = Number(document.getElementById("live")?.dataset.every || 0) * 1000;
  const SLOWEST = 60000;
  const LOST_AFTER = 2; // questions in a row without an answer

  // Text and times

  function span(seconds) {
    if (seconds < 120) return `${Math.max(Math.floor(seconds), 1)} s`;
    if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
    return `${Math.floor(seconds / 86400)} days`;
  }

  // The server's clock, not this machine's: what was rendered says when.
  const rendered = document.querySelector(".foot time");
  const ahead = rendered ? Date.parse(rendered.dateTime) - Date.now() : 0;

  function tellTimes() {
    for (const item of document.querySelectorAll("[data-ago]")) {
      const seconds = (Date.now() + ahead - Date.parse(item.dataset.ago)) / 1000;
      const text = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
      if (item.textContent !== text) item.textContent = text;
    }
  }

  // Live parts: the page is asked for again, and what is marked live is put in the place of the old

  const told = document.getElementById("live");
  const news = document.getElementById("live-news");
  let answered = performance.now();
  let failures = 0;
  let timer = 0;
  let asking = false;

  function wait() {
    clearTimeout(timer);
    if (!every || document.hidden) return;
    timer = setTimeout(ask, Math.min(every * 2 ** failures, SLOWEST));
  }

  async function ask() {
    if (asking) return;
    asking = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(10000) });
      if (!answer.ok) throw new Error(String(answer.status));
      if (document.querySelector("[data-retry]")) return location.reload();
      swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
      if (failures >= LOST_AFTER) news.textContent = "Connected again.";
      failures = 0;
      answered = performance.now();
    } catch {
      failures += 1;
      if (failures === LOST_AFTER) news.textContent = "Connection lost: what is shown gets old.";
    } finally {
      asking = false;
      tell();
      wait();
    }
  }

  function swap(fresh) {
    const selected = String(getSelection() ?? "");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
      if (!other || selected || part.dataset.shown === other.innerHTML) continue;
      const at = part.contains(document.activeElement) ? pathTo(part, document.activeElement) : null;
      if (at && at.form) continue; // somebody writes
      const open = [...part.querySelectorAll("details")].map((item) => item.open);
      part.dataset.shown = other.innerHTML;
      part.replaceChildren(...document.importNode(other, true).childNodes);
      [...part.querySelectorAll("details")].forEach((item, index) => { item.open = open[index] ?? false; });
      if (at) find(part, at)?.focus({ preventScroll: true });
    }
    tellTimes();
    roving();
  }

  function pathTo(part, element) {
    return { form: element.matches("input, select, textarea"), href: element.getAttribute("href"), index: [...part.querySelectorAll("a, button, [tabindex]")].indexOf(element) };
  }

  function find(part, at) {
    const all = [...part.querySelectorAll("a, button, [tabindex]")];
    return (at.href && all.find((item) => item.getAttribute("href") === at.href)) || all[at.index];
  }

  function tell() {
    if (!told || !every) return;
    const seconds = (performance.now() - answered) / 1000;
    const lost = failures >= LOST_AFTER;
    told.classList.toggle("lost", lost);
    told.querySelector(".told").textContent = lost ? `Connection lost, as of ${span(seconds)} ago` : seconds < 1 ? "Updated now" : `Updated ${span(seconds)} ago`;
  }

  if (told && every) {
    told.hidden = false;
    setInterval(() => { if (!document.hidden) { tell(); tellTimes(); } }, 1000);
    document.addEventListener("visibilitychange", () => { if (document.hidden) clearTimeout(timer); else ask(); });
    addEventListener("online", ask);
    tell();
    wait();
  }

  // The theme: the same cookie that the form sets

  const themes = ["auto", "light", "dark"];

  function nextTheme() {
    const theme = themes[(themes.indexOf(page.dataset.theme) + 1) % themes.length];
    page.dataset.theme = theme;
    document.cookie = `theme=${theme}; Path=/; Max-Age=31536000; SameSite=Strict${location.protocol === "https:" ? "; Secure" : ""}`;
    const button = document.getElementById("theme-button");
    if (button) button.textContent = `Theme: ${theme}`;
  }

  document.getElementById("theme-form")?.addEventListener("submit", (event) => { event.preventDefault(); nextTheme(); });

  // Keys

  const help = document.getElementById("keys");
  const stored = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  let off = stored("keys") === "off";
  for (const box of document.querySelectorAll(".keys-off")) {
    box.checked = off;
    box.addEventListener("change", () => {
      off = box.checked;
      try { localStorage.setItem("keys", off ? "off" : "on"); } catch { /* then it holds for this page */ }
    });
  }

  document.getElementById("help-link")?.addEventListener("click", (event) => { event.preventDefault(); help.showModal(); });

  function rows() {
    return [...document.querySelectorAll("[data-list] [data-item]")];
  }

  function step(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.contains(document.activeElement));
    const row = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1)];
    const target = row.querySelector("a.row") ?? row;
    target.focus();
    row.scrollIntoView({ block: "nearest" });
  }

  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || off || help?.open) return;
    if (event.target.closest("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (going) {
      clearTimeout(going);
      going = 0;
      const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const actions = {
      j: () => step(1),
      k: () => step(-1),
      "/": () => document.querySelector("[data-filter]")?.focus(),
      "?": () => help?.showModal(),
      n: () => document.querySelector("[data-next]")?.click(),
      p: () => document.querySelector("[data-first]")?.click(),
      t: nextTheme,
      g: () => { going = setTimeout(() => { going = 0; }, 1500); },
    };
    const action = actions[event.key];
    if (action) { event.preventDefault(); action(); }
  });

  // The map is one stop for Tab; arrows move on it

  function roving() {
    const map = document.querySelector("[data-map]");
    if (!map) return;
    const tiles = [...map.querySelectorAll("a.tile")];
    if (tiles.some((tile) => tile.tabIndex === 0) && tiles.some((tile) => tile.tabIndex < 0)) return;
    tiles.forEach((tile, index) => { tile.tabIndex = index ? -1 : 0; });
    map.onkeydown = (event) => {
      const at = tiles.indexOf(document.activeElement);
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -tiles.length, End: tiles.length }[event.key];
      if (at < 0 || !by) return;
      event.preventDefault();
      const next = tiles[Math.min(Math.max(at + by, 0), tiles.length - 1)];
      tiles[at].tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    };
  }

  roving();
  tellTimes();
})();
