// Updates the live part of the page. The focus, open details and scroll positions are kept.
"use strict";
const live = document.getElementById("live");
const state = document.getElementById("state");

function show(html) {
  const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement.id : "";
  const open = new Set([...live.querySelectorAll("details[open]")].map((one) => one.id));
  const scrolled = [...live.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  live.innerHTML = html;
  live.querySelectorAll("details").forEach((one) => { one.open = open.has(one.id); });
  live.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] || 0; });
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

if (live && live.dataset.path && state) {
  const source = new EventSource("/live?path=" + encodeURIComponent(live.dataset.path));
  source.onmessage = (event) => {
    const { html, is_stale } = JSON.parse(event.data);
    if (!String(getSelection())) show(html);
    state.textContent = is_stale ? "not up to date" : "live";
  };
  source.addEventListener("wrong", (event) => { state.textContent = "stopped: " + JSON.parse(event.data); });
  source.onerror = () => { state.textContent = "the console does not answer, trying again"; };
  addEventListener("pagehide", () => source.close());
}
