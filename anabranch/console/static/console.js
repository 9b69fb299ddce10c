// Updates the live part of the page. The focus, fields in use, open details and scroll positions are kept.
"use strict";
const live = document.getElementById("live");
const state = document.getElementById("state");

function show(html) {
  const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement.id : "";
  const open = new Set([...live.querySelectorAll("details[open]")].map((one) => one.id));
  const scrolled = [...live.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const used = [...live.querySelectorAll("input[id]")].filter(
    (one) => one === document.activeElement || one.value !== one.defaultValue);
  live.innerHTML = html;
  used.forEach((one) => document.getElementById(one.id)?.replaceWith(one));
  live.querySelectorAll("details").forEach((one) => { one.open = open.has(one.id); });
  live.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] || 0; });
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

// Whether text of the page is selected. The selected text of a field does not count: it stays selected when the focus leaves.
function isReading() {
  return !getSelection().isCollapsed;
}

let source;
let again = 0;

// A browser repeats a connection that broke. It does not repeat one that was answered with an error.
function follow() {
  source = new EventSource("/live?path=" + encodeURIComponent(live.dataset.path));
  source.onmessage = (event) => {
    const news = JSON.parse(event.data);
    if (!isReading()) show(news.html);
    state.textContent = news.state;
  };
  source.addEventListener("wrong", (event) => { state.textContent = "stopped: " + JSON.parse(event.data); });
  source.onerror = (event) => {
    state.textContent = "the console does not answer, trying again";
    if (event.target.readyState === EventSource.CLOSED) again = setTimeout(follow, 3000);
  };
}

if (live && live.dataset.path && state) {
  follow();
  addEventListener("pagehide", () => { clearTimeout(again); source.close(); });
  addEventListener("pageshow", (event) => { if (event.persisted) follow(); }); // a page that the browser kept
}
