// Puts what changed in its place, without loading the page again. The page is whole without this.
"use strict";

(() => {
  const page = document.body.dataset.live;
  document.documentElement.classList.add("scripted");
  const mark = document.getElementById("live");
  const held = new Map();
  let stream = null;
  let tries = 0;
  let heard = false;
  let retry = 0;

  // === Ages ===

  const ages = [[120, 1, "s"], [7200, 60, "m"], [172800, 3600, "h"], [Infinity, 86400, "d"]];

  function tell(time) {
    const seconds = Math.max(0, (Date.now() - Date.parse(time.dateTime)) / 1000);
    const [, unit, letter] = ages.find(([most]) => seconds < most);
    const age = `${Math.floor(seconds / unit)}${letter}`;
    const text = time.dataset.form === "lasting" ? age : `${age} ago`;
    if (time.textContent !== text) time.textContent = text;
  }

  function tellAll(within) {
    within.querySelectorAll("time[datetime]").forEach(tell);
  }

  // === Parts ===

  // Somebody marks text to copy it: the part stays as it is until they are done.
  function isMarked(part) {
    const marked = document.getSelection();
    return marked && !marked.isCollapsed && part.contains(marked.anchorNode);
  }

  function put(id, html) {
    const part = document.getElementById(id);
    if (!part) return;
    if (isMarked(part)) {
      held.set(id, html);
      return;
    }
    held.delete(id);
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const link = focused && focused.getAttribute("href");
    // What a person opened stays open, and has the focus again.
    const open = [...part.querySelectorAll("details[open][id]")].map((it) => it.id);
    const unfolded = focused && focused.closest("summary")?.parentElement.id;
    const scrolled = part.querySelector("pre");
    const wasAtEnd = !scrolled || isAtEnd(scrolled);
    const top = scrolled ? scrolled.scrollTop : 0;
    part.innerHTML = html;
    tellAll(part);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    const text = part.querySelector("pre");
    if (text) text.scrollTop = wasAtEnd ? text.scrollHeight : top;
    if (link) part.querySelector(`[href="${CSS.escape(link)}"]`)?.focus();
    else if (unfolded) document.getElementById(unfolded)?.querySelector("summary")?.focus();
    else if (focused && text) text.focus();
  }

  function isAtEnd(text) {
    return text.scrollHeight - text.scrollTop - text.clientHeight < 8;
  }

  document.addEventListener("selectionchange", () => {
    for (const [id, html] of [...held]) put(id, html);
  });

  // === The stream ===

  function say(word, title) {
    mark.textContent = word;
    mark.className = word === "live" ? "good" : "busy";
    mark.title = title;
  }

  function open() {
    close();
    stream = new EventSource(page);
    stream.onopen = () => {
      tries = 0;
      say("live", "This page keeps itself up to date.");
    };
    stream.onmessage = (message) => {
      const parts = JSON.parse(message.data);
      // What happened before the page was opened is no news.
      if (!heard) delete parts.said;
      heard = true;
      for (const [id, html] of Object.entries(parts)) put(id, html);
    };
    stream.onerror = () => {
      say("not live", "The agent does not answer; this page tries again.");
      if (stream.readyState === EventSource.CLOSED) later();
    };
  }

  function close() {
    if (stream) stream.close();
    stream = null;
    clearTimeout(retry);
  }

  // Refused: the session may be over, and then the page itself says so.
  function later() {
    close();
    tries += 1;
    const wait = Math.min(30, 2 ** tries) * (500 + 500 * Math.random());
    retry = setTimeout(async () => {
      try {
        const answer = await fetch(location.href, { method: "HEAD" });
        if (answer.redirected || answer.status === 401) location.reload();
        else open();
      } catch {
        later();
      }
    }, wait);
  }

  // === A log that is followed ===

  const ROWS_MAX = 5000;

  function followed(text) {
    const choice = document.getElementById("follow");
    let lines = null;
    const stop = () => {
      if (lines) lines.close();
      lines = null;
    };
    const start = () => {
      stop();
      const address = new URL(text.dataset.follow, location.href);
      if (text.dataset.at) address.searchParams.set("at", text.dataset.at);
      lines = new EventSource(address);
      lines.onmessage = (message) => {
        text.dataset.at = message.lastEventId;
        const wasAtEnd = isAtEnd(text);
        text.insertAdjacentHTML("beforeend", JSON.parse(message.data).lines);
        while (text.childElementCount > ROWS_MAX) text.firstElementChild.remove();
        if (wasAtEnd) text.scrollTop = text.scrollHeight;
      };
      lines.onerror = () => {
        if (!lines || lines.readyState !== EventSource.CLOSED) return;
        stop();
        setTimeout(() => { if (choice.checked && !document.hidden) start(); }, 5000);
      };
    };
    const begin = () => (choice.checked && !document.hidden ? start() : stop());
    choice.addEventListener("change", begin);
    document.addEventListener("visibilitychange", begin);
    text.scrollTop = text.scrollHeight;
    begin();
  }

  document.querySelectorAll("pre[data-follow]").forEach(followed);

  tellAll(document);
  setInterval(() => tellAll(document), 1000);
  document.querySelectorAll("#log pre").forEach((text) => { text.scrollTop = text.scrollHeight; });
  if (page) {
    // A page that nobody sees asks for nothing.
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    if (!document.hidden) open();
  }
})();
